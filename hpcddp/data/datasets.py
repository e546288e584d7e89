"""Data sets that answer with a whole batch of pixels. Knows no process, no order and no device.

A sample is (epoch, index); the epoch matters to augmentation only. Everything here can be pickled
into a loader worker.

Shapes: n samples, c channels (3 in every batch), h = w = image_size, 2 = (epoch, index).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from hpcddp.config.schema import DataConfig, check_data
from hpcddp.data import sources
from hpcddp.data.augment import Augment, stack
from hpcddp.data.folder import Names, list_classes, list_pictures, open_picture
from hpcddp.data.synthetic import SyntheticImages
from hpcddp.errors import ConfigError

Samples = Sequence[tuple[int, int]] | npt.NDArray[np.int64]  # rows (epoch, index)
Batch = tuple[torch.Tensor, torch.Tensor]  # images_nchw uint8, labels_n int64; on the CPU
Channels = tuple[float, float, float]

_NO_AUGMENT = Augment()
_SYNTHETIC_TEST_SHARE = 5  # one test image for every five training images


class Dataset(Protocol):
    """What the loader and the loop ask of a data set. Mean and std are of pixels / 255."""

    @property
    def num_classes(self) -> int: ...

    @property
    def mean_c(self) -> Channels: ...

    @property
    def std_c(self) -> Channels: ...

    def __len__(self) -> int: ...

    def fetch(self, samples: Samples, augment: Augment = ...) -> Batch:
        """Pixels and labels of `samples`, in their order, changed by `augment`."""


@dataclass(frozen=True, slots=True)
class ArrayDataset:
    """Images that are addressed like one array of one or three channels: a batch is one gather."""

    images_nchw: npt.NDArray[np.uint8] | SyntheticImages
    labels_n: npt.NDArray[np.int64]
    num_classes: int
    mean_c: Channels
    std_c: Channels

    def __len__(self) -> int:
        return len(self.labels_n)

    def fetch(self, samples: Samples, augment: Augment = _NO_AUGMENT) -> Batch:
        """Pixels and labels of `samples`; a grey image becomes three equal channels."""
        samples_n2 = _rows(samples)
        indices_n = samples_n2[:, 1]
        images_nchw = self.images_nchw[indices_n]
        if images_nchw.shape[1] == 1:
            images_nchw = np.repeat(images_nchw, 3, axis=1)
        images_nchw = augment.arrays(images_nchw, samples_n2)
        return torch.from_numpy(images_nchw), torch.from_numpy(self.labels_n[indices_n])


@dataclass(frozen=True, slots=True)
class FolderDataset:
    """Pictures of any size below `folder`, decoded when they are asked for."""

    folder: Path
    names_n: Names  # CLASS/FILE
    labels_n: npt.NDArray[np.int64]
    num_classes: int
    image_size: int
    mean_c: Channels
    std_c: Channels

    def __len__(self) -> int:
        return len(self.labels_n)

    def fetch(self, samples: Samples, augment: Augment = _NO_AUGMENT) -> Batch:
        """Pixels and labels of `samples`, cropped to one size by `augment`."""
        samples_n2 = _rows(samples)
        indices_n = samples_n2[:, 1]
        pictures = (open_picture(self.folder, name) for name in self.names_n[indices_n])
        images_nchw = augment.pictures(pictures, samples_n2, self.image_size)
        return torch.from_numpy(images_nchw), torch.from_numpy(self.labels_n[indices_n])


def build_dataset(config: DataConfig, split: str) -> Dataset:
    """The `split` ("train" or "test") of the data set that the configuration names.

    Raises HpcddpError, with what to install or where to put which file, when it is not there.
    """
    if config.name not in _BUILDERS or split not in ("train", "test"):
        raise ConfigError(f"data.name={config.name}, split={split}: no such data set.")
    return _BUILDERS[config.name](config, split)


def _digits(config: DataConfig, split: str) -> ArrayDataset:
    images_nchw, labels_n = sources.load_digits(split)
    images_nchw = _at_size(images_nchw, config.image_size)
    # Measured on all 1797 digits after resizing to 32 x 32.
    return ArrayDataset(images_nchw, labels_n, 10, (0.306,) * 3, (0.324,) * 3)


def _fashion_mnist(config: DataConfig, split: str) -> ArrayDataset:
    images_nchw, labels_n = sources.load_fashion_mnist(config.root, split)
    images_nchw = _at_size(images_nchw, config.image_size)
    return ArrayDataset(images_nchw, labels_n, 10, (0.286,) * 3, (0.353,) * 3)


def _cifar10(config: DataConfig, split: str) -> ArrayDataset:
    images_nchw, labels_n = sources.load_cifar10(config.root, split)
    images_nchw = _at_size(images_nchw, config.image_size)
    mean_c, std_c = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return ArrayDataset(images_nchw, labels_n, 10, mean_c, std_c)


def _imagenet(config: DataConfig, split: str) -> FolderDataset:
    check_data(config)
    assert config.root is not None
    root = Path(config.root)
    classes = list_classes(root)
    folder = root / ("train" if split == "train" else "val")
    names_n, labels_n = list_pictures(folder, classes)
    mean_c, std_c = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return FolderDataset(folder, names_n, labels_n, len(classes), config.image_size, mean_c, std_c)


def _synthetic(config: DataConfig, split: str) -> ArrayDataset:
    num_train, num_classes = config.synthetic_samples, config.synthetic_classes
    num_test = max(1, num_train // _SYNTHETIC_TEST_SHARE)
    first, count = (0, num_train) if split == "train" else (num_train, num_test)
    images = SyntheticImages(num_classes, config.image_size, first)
    labels_n = (first + np.arange(count)) % num_classes
    return ArrayDataset(images, labels_n, num_classes, (0.475,) * 3, (0.167,) * 3)


_BUILDERS = {
    "digits": _digits,
    "fashion_mnist": _fashion_mnist,
    "cifar10": _cifar10,
    "imagenet": _imagenet,
    "synthetic": _synthetic,
}


def _rows(samples: Samples) -> npt.NDArray[np.int64]:
    return np.asarray(samples, dtype=np.int64).reshape(-1, 2)


def _at_size(images_nchw: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """The images resized; with Pillow's integer arithmetic, so the same bytes on every machine."""
    if images_nchw.shape[2:] == (size, size):
        return images_nchw
    planes = images_nchw.reshape(-1, *images_nchw.shape[2:])
    shape_hw = (size, size)
    resized = stack(
        np.asarray(Image.fromarray(plane).resize(shape_hw, Image.Resampling.BILINEAR))
        for plane in planes
    )
    return resized.reshape(*images_nchw.shape[:2], size, size)
