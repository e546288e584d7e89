"""A tree of pictures, root/SPLIT/CLASS/FILE as ImageNet has it. Knows no torch and no order.

Shapes: n samples.
"""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from hpcddp.errors import ConfigError, HpcddpError

Names = npt.NDArray[np.bytes_]

_SUFFIXES = (b".jpeg", b".jpg", b".png")


def list_classes(root: Path) -> list[str]:
    """The class folders of the training split, sorted: their places are the labels."""
    train = root / "train"
    try:
        classes = sorted(entry.name for entry in os.scandir(train) if entry.is_dir())
    except OSError as error:
        raise ConfigError(
            f"data.name=imagenet: cannot list {train} ({error.strerror}). Set data.root to the "
            "folder that holds train/CLASS/*.JPEG and val/CLASS/*.JPEG.",
            "missing_data",
        ) from error
    if not classes:
        raise ConfigError(f"{train} holds no class folders (train/CLASS/*.JPEG).", "missing_data")
    return classes


def list_pictures(folder: Path, classes: list[str]) -> tuple[Names, npt.NDArray[np.int64]]:
    """(CLASS/FILE names_n, labels_n) of every picture below `folder`, in sorted order.

    One block of bytes, not a list of strings: a million Python strings would be copied page by
    page into every loader worker as their reference counts change.
    """
    names_n = [_pictures_of_class(folder, name) for name in classes]
    counts = [len(names) for names in names_n]
    if not sum(counts):
        raise ConfigError(
            f"{folder} holds no .JPEG or .png files in class folders.", "missing_data"
        )
    labels_n = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    return np.array([name for names in names_n for name in names]), labels_n


def _pictures_of_class(folder: Path, name: str) -> list[bytes]:
    class_name = os.fsencode(name)
    try:
        files = os.listdir(os.path.join(os.fsencode(folder), class_name))
    except OSError as error:
        raise ConfigError(
            f"cannot list {folder / name} ({error.strerror}): each class of train/ needs a folder "
            f"in {folder.name}/ too.",
            "missing_data",
        ) from error
    wanted = (file for file in files if file.lower().endswith(_SUFFIXES) and file[:1] != b".")
    return sorted(class_name + b"/" + file for file in wanted)


def open_picture(folder: Path, name: bytes) -> Image.Image:
    """One picture decoded to RGB; the error names the file."""
    path = os.path.join(os.fsencode(folder), name)
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except (OSError, SyntaxError) as error:  # SyntaxError is what Pillow raises for a broken PNG
        raise HpcddpError(
            f"{os.fsdecode(path)} cannot be decoded ({error}).", "bad_data"
        ) from error
