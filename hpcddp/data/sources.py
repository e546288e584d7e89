"""Small data sets that fit in memory, read whole from files that are already there.

Each reader returns (images_nchw uint8 in the files' own size, labels_n int64) of one split. Nothing
is ever downloaded; an error says which file is missing and where it comes from. Knows no torch.

Shapes: n samples, c channels (1 or 3), h height, w width.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcddp.config.schema import FASHION_MNIST_ROOT
from hpcddp.errors import ConfigError, HpcddpError

Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]

_DIGITS_TEST_EVERY = 5  # one in five digits of each class is for testing
_DIGITS_WHITE = 16  # the original pixels are 0..16
_IDX_UINT8 = 0x08


def load_digits(split: str) -> Arrays:
    """scikit-learn's 1797 handwritten digits, 8x8 grey; every fifth of each class is for testing.

    The 8-bit values of the wheel's file spread to 0..255. Writers occur in both parts, as in most
    published splits of this set.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise HpcddpError(
            "data.name=digits needs scikit-learn, which ships these images, and it is not "
            "installed. Type: pip install 'hpcddp[demo]'",
            "missing_package",
        ) from error
    digits = datasets.load_digits()
    images_nhw = np.rint(digits.images * (255 / _DIGITS_WHITE)).astype(np.uint8)
    labels_n = digits.target.astype(np.int64)
    chosen_n = _every_fifth_of_a_class(labels_n) == (split == "test")
    return images_nhw[chosen_n, None], labels_n[chosen_n]


def _every_fifth_of_a_class(labels_n: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    chosen_n = np.zeros(len(labels_n), dtype=bool)
    for label in np.unique(labels_n):
        chosen_n[
            np.flatnonzero(labels_n == label)[_DIGITS_TEST_EVERY - 1 :: _DIGITS_TEST_EVERY]
        ] = 1
    return chosen_n


def load_fashion_mnist(root: str | None, split: str) -> Arrays:
    """Fashion-MNIST, 28x28 grey, from its four IDX files."""
    folder = Path(root or FASHION_MNIST_ROOT)
    prefix = "train" if split == "train" else "t10k"
    images_nhw = _read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", num_axes=3)
    labels_n = _read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", num_axes=1)
    if len(images_nhw) != len(labels_n):
        raise ConfigError(
            f"{folder}: {len(images_nhw)} images but {len(labels_n)} labels for {prefix}; these "
            "files do not belong together. Copy them again."
        )
    return images_nhw[:, None], labels_n.astype(np.int64)


def _read_idx(path: Path, num_axes: int) -> npt.NDArray[np.uint8]:
    """One IDX file: 00 00, type, number of axes, big-endian 32-bit lengths, then the bytes."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist. On Debian type: apt-get install dataset-fashion-mnist; "
            "elsewhere set data.root to the folder with the four *-ubyte.gz files.",
            "missing_data",
        ) from error
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Copy it again.") from error
    num_header = 4 + 4 * num_axes
    header, body = raw[:num_header], np.frombuffer(raw[num_header:], dtype=np.uint8)
    lengths = [int.from_bytes(header[k : k + 4], "big") for k in range(4, num_header, 4)]
    is_header = len(header) == num_header and header[:4] == bytes([0, 0, _IDX_UINT8, num_axes])
    if not is_header or body.size != math.prod(lengths):
        raise ConfigError(f"{path} is no complete IDX file of {num_axes} axes. Copy it again.")
    return body.reshape(lengths)


def load_cifar10(root: str | None, split: str) -> Arrays:
    """CIFAR-10, 32x32 colour, from its Python batches.

    torchvision compares each file with its published MD5 before it unpickles it, so no foreign
    pickle is ever run.
    """
    from torchvision.datasets import CIFAR10

    folder = root or "."
    try:
        cifar = CIFAR10(folder, train=split == "train", download=False)
    except RuntimeError as error:
        raise ConfigError(
            f"data.name=cifar10: {Path(folder, CIFAR10.base_folder).absolute()} is missing or its "
            f"files are not the published ones. Unpack {CIFAR10.filename} into {folder}, or set "
            f"data.root to the folder that holds {CIFAR10.base_folder}.",
            "missing_data",
        ) from error
    images_nchw = np.ascontiguousarray(cifar.data.transpose(0, 3, 1, 2))
    return images_nchw, np.asarray(cifar.targets, dtype=np.int64)
