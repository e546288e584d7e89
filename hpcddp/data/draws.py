"""Random numbers as a pure function of (seed, epoch, index), for whole batches at once.

Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
1, 2, 3" (SC 2011): integer arithmetic only, so the same bits on every machine. Knows no images.

Shapes: n samples, 2 = (epoch, index in the data set), k draws for each sample.
"""

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFF_FFFF), np.uint64(32)
_WORDS_PER_BLOCK = 4


def philox(counter: tuple[UInt64Array, ...], key: tuple[int, int]) -> tuple[UInt64Array, ...]:
    """Four random 32-bit words for each counter of four 32-bit words (held in uint64 arrays)."""
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        ab, cd = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (cd >> _HALF) ^ b ^ np.uint64(left), cd & _LOW
        c, d = (ab >> _HALF) ^ d ^ np.uint64(right), ab & _LOW
        left, right = (left + _KEY_STEPS[0]) & 0xFFFF_FFFF, (right + _KEY_STEPS[1]) & 0xFFFF_FFFF
    return a, b, c, d


def random_words(seed: int, samples_n2: npt.NDArray[np.int64], num_draws: int) -> UInt64Array:
    """`num_draws` independent words in [0, 2^32) for each (epoch, index); uint64, shape (n, k)."""
    epochs_n, indices_n = samples_n2.astype(np.uint64).T
    key = (seed & 0xFFFF_FFFF, seed >> 32 & 0xFFFF_FFFF)
    blocks = [
        np.stack(philox((np.full_like(indices_n, block), indices_n, epochs_n, epochs_n * 0), key))
        for block in range(-(-num_draws // _WORDS_PER_BLOCK))
    ]
    return np.concatenate(blocks).T[:, :num_draws]


def uniform(words: UInt64Array) -> npt.NDArray[np.float64]:
    """Words as floats in [0, 1)."""
    return words / 2.0**32


def below(words: UInt64Array, bound: int) -> npt.NDArray[np.int64]:
    """Words as integers in [0, bound), for bounds far below 2^32."""
    return ((words * np.uint64(bound)) >> _HALF).astype(np.int64)
