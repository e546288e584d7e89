"""Made-up images that cost next to nothing and can be learnt. Knows no torch.

Shapes: n samples, c = 3 channels, h = w = size.
"""

import numpy as np
import numpy.typing as npt

_SEED = 20_160  # any constant: the images are the same in every run
_CELLS = 8  # stripes per side
_STRIPE_LEVELS, _NOISE_SHIFT = 96, 2  # 95 + 95 + 63 stays below 256
_NUM_OFFSETS = 65_521  # prime, so that neighbouring indices see unlike noise


class SyntheticImages:
    """Image i has the stripes of class i % num_classes, plus noise of its own.

    `images[indices_n]` gives uint8 (n, 3, size, size), like an array of all images from `first` on
    would. The noise is a window into one block of random bytes: a batch costs about three copies.
    """

    def __init__(self, num_classes: int, size: int, first: int = 0) -> None:
        random = np.random.Philox(_SEED)
        self._first, self._shape_chw = first, (3, size, size)
        cells = np.arange(size) * _CELLS // size
        self._rows, self._columns = (
            _bytes(random, num_classes * 3 * _CELLS).reshape(num_classes, 3, _CELLS)[..., cells]
            % _STRIPE_LEVELS
            for _ in range(2)
        )
        self._noise = _bytes(random, 3 * size * size + _NUM_OFFSETS) >> _NOISE_SHIFT

    def __getitem__(self, indices_n: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        numbers_n = self._first + indices_n
        labels_n = numbers_n % len(self._rows)
        windows = np.lib.stride_tricks.sliding_window_view(self._noise, np.prod(self._shape_chw))
        images_nchw = windows[numbers_n * 7919 % _NUM_OFFSETS].reshape(-1, *self._shape_chw)
        images_nchw += self._rows[labels_n][:, :, :, None]
        images_nchw += self._columns[labels_n][:, :, None, :]
        return images_nchw


def _bytes(random: np.random.Philox, count: int) -> npt.NDArray[np.uint8]:
    return random.random_raw(-(-count // 8)).astype("<u8").view(np.uint8)[:count]
