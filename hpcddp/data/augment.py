"""Augmentation without state: every draw is a function of (seed, epoch, index) alone.

So a sample looks the same whichever process or loader worker makes it, after any number of
restarts. Knows no data set and no loader.

Shapes: n samples, c channels, h height, w width, 2 = (epoch, index in the data set).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from hpcddp.data.draws import below, random_words, uniform
from hpcddp.errors import ConfigError

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels

_CENTER_SHARE = 224 / 256  # of the shorter side; the usual ImageNet evaluation crop
_CROP_PADDING = 4  # pixels; He et al. 2016, section 4.2
_SHIFT_SHARE = 8  # a digit moves by at most 1/8 of the image: one of its original 8 pixels
_CROP_AREAS, _CROP_RATIOS, _CROP_ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10


@dataclass(frozen=True, slots=True)
class Augment:
    """Images as they are, and the base of the others; pictures of any size give their centre."""

    seed: int = 0

    def arrays(self, images_nchw: UInt8Array, samples_n2: Int64Array) -> UInt8Array:
        """The batch, changed; same shape. May return its input."""
        return images_nchw

    def pictures(
        self, pictures: Iterable[Image.Image], samples_n2: Int64Array, size: int
    ) -> UInt8Array:
        """Pictures of any size as one batch (n, 3, size, size); each is used before the next."""
        images_nchw = stack(resized(picture, center_box(picture), size) for picture in pictures)
        return self.arrays(images_nchw, samples_n2)


class Shift(Augment):
    """Move the image by up to 1/8 of its size, filling with black."""

    __slots__ = ()

    def arrays(self, images_nchw: UInt8Array, samples_n2: Int64Array) -> UInt8Array:
        words = random_words(self.seed, samples_n2, 2)
        return shifted(images_nchw, words, images_nchw.shape[-1] // _SHIFT_SHARE)


class CropFlip(Augment):
    """Pad by 4 pixels, crop the original size, mirror every second image."""

    __slots__ = ()

    def arrays(self, images_nchw: UInt8Array, samples_n2: Int64Array) -> UInt8Array:
        words = random_words(self.seed, samples_n2, 3)
        return mirrored(shifted(images_nchw, words, _CROP_PADDING), words[:, 2])


class RandomResizedCrop(Augment):
    """A random part of random shape, resized; every second one mirrored. For ImageNet."""

    __slots__ = ()

    def arrays(self, images_nchw: UInt8Array, samples_n2: Int64Array) -> UInt8Array:
        pictures = (Image.fromarray(image_chw.transpose(1, 2, 0)) for image_chw in images_nchw)
        return self.pictures(pictures, samples_n2, images_nchw.shape[-1])

    def pictures(
        self, pictures: Iterable[Image.Image], samples_n2: Int64Array, size: int
    ) -> UInt8Array:
        words = random_words(self.seed, samples_n2, 1 + 4 * _CROP_ATTEMPTS)
        draws = uniform(words[:, 1:]).reshape(len(words), _CROP_ATTEMPTS, 4)
        images_nchw = stack(
            resized(picture, random_box(*picture.size, draws_k4), size)
            for picture, draws_k4 in zip(pictures, draws, strict=True)
        )
        return mirrored(images_nchw, words[:, 0])


_AUGMENTATIONS = {
    "none": Augment,
    "shift": Shift,
    "crop_flip": CropFlip,
    "random_resized_crop": RandomResizedCrop,
}


def build_augment(name: str, seed: int) -> Augment:
    """The augmentation called `name` in the configuration, drawing from `seed`."""
    if name not in _AUGMENTATIONS:
        raise ConfigError(f"data.augment={name}: use one of {', '.join(_AUGMENTATIONS)}.")
    return _AUGMENTATIONS[name](seed)


def shifted(images_nchw: UInt8Array, words: npt.NDArray[np.uint64], reach: int) -> UInt8Array:
    """Each image moved by up to `reach` pixels along both axes, as its first two words say."""
    border = (reach, reach)
    padded_nchw = np.pad(images_nchw, ((0, 0), (0, 0), border, border))
    height, width = images_nchw.shape[2:]
    tops_n, lefts_n = below(words[:, :2], 2 * reach + 1).T
    windows = np.lib.stride_tricks.sliding_window_view(padded_nchw, (height, width), axis=(2, 3))
    return windows[np.arange(len(images_nchw)), :, tops_n, lefts_n]


def mirrored(images_nchw: UInt8Array, words_n: npt.NDArray[np.uint64]) -> UInt8Array:
    """The batch with left and right exchanged where the image's word is odd."""
    odd_n111 = (words_n & np.uint64(1)).astype(bool)[:, None, None, None]
    return np.where(odd_n111, images_nchw[..., ::-1], images_nchw)


def center_box(picture: Image.Image) -> Box:
    """The square in the middle that evaluation looks at."""
    width, height = picture.size
    side = _CENTER_SHARE * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, draws_k4: npt.NDArray[np.float64]) -> Box:
    """A part with a random share of the area and a random shape: the first of k tries that fits.

    The distribution is that of Szegedy et al. 2015, section 6, as everybody trains ImageNet.
    """
    log_ratios = np.log(_CROP_RATIOS)
    for area_draw, ratio_draw, left_draw, top_draw in draws_k4:
        area = (_CROP_AREAS[0] + (_CROP_AREAS[1] - _CROP_AREAS[0]) * area_draw) * width * height
        ratio = math.exp(log_ratios[0] + (log_ratios[1] - log_ratios[0]) * ratio_draw)
        box_w, box_h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_w <= width and 0 < box_h <= height:
            left, top = int(left_draw * (width - box_w + 1)), int(top_draw * (height - box_h + 1))
            return left, top, left + box_w, top + box_h
    return fitting_box(width, height)


def fitting_box(width: int, height: int) -> Box:
    """The largest centred part whose shape is within the allowed ratios."""
    box_w = min(width, round(height * _CROP_RATIOS[1]))
    box_h = min(height, round(width / _CROP_RATIOS[0]))
    left, top = (width - box_w) // 2, (height - box_h) // 2
    return left, top, left + box_w, top + box_h


def resized(picture: Image.Image, box: Box, size: int) -> UInt8Array:
    """The part `box` of an RGB picture as (3, size, size), with an antialiasing filter."""
    small = picture.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def stack(images_chw: Iterable[UInt8Array]) -> UInt8Array:
    """Single images as one contiguous batch."""
    return np.stack(list(images_chw))
