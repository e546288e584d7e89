"""Augmentation is a function of (seed, epoch, index), and does what its name says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hpcddp.data.augment import build_augment, center_box, fitting_box, random_box
from hpcddp.data.draws import below, philox, random_words, uniform
from hpcddp.errors import ConfigError

NAMES = ["none", "shift", "crop_flip", "random_resized_crop"]
CHANGING = NAMES[1:]


def images(count, size=16):
    raw = np.random.Philox(1).random_raw(count * 3 * size * size)
    return raw.astype(np.uint8).reshape(count, 3, size, size)


def samples(count, epoch=0, first=0):
    return np.stack([np.full(count, epoch), np.arange(first, first + count)], axis=1)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # The generator's published known answers (Random123, kat_vectors).
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_the_generator_gives_its_published_answers(counter, key, words):
    numbers = [int(word, 16) for word in counter.split()]
    left, right = (int(word, 16) for word in key.split())
    answer = philox(tuple(np.array([number], dtype=np.uint64) for number in numbers), (left, right))
    assert " ".join(f"{int(word[0]):08x}" for word in answer) == words


def test_draws_are_independent_and_even():
    words = random_words(3, samples(20_000), 6)
    assert words.shape == (20_000, 6)
    numbers = uniform(words)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean(axis=0) - 0.5).max() < 0.01
    assert abs(np.corrcoef(numbers.T) - np.eye(6)).max() < 0.04
    counts = np.bincount(below(words[:, 0], 7), minlength=7)
    assert abs(counts - 20_000 / 7).max() < 6 * 50  # standard deviation 49


def test_draws_depend_on_seed_epoch_and_index():
    first = random_words(1, samples(4), 4)
    others = [
        random_words(2, samples(4), 4),
        random_words(1 + 2**32, samples(4), 4),
        random_words(1, samples(4, epoch=1), 4),
        random_words(1, samples(4, first=4), 4),
    ]
    for other in others:
        assert not (first == other).any()


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=20)
@given(order=st.permutations(range(12)), cut=st.integers(1, 11))
def test_a_sample_looks_the_same_in_any_company(name, order, cut):
    augment, pictures, rows = build_augment(name, 5), images(12), samples(12, epoch=2)
    whole = augment.arrays(pictures, rows)
    parts = [
        augment.arrays(pictures[list(part)], rows[list(part)])
        for part in (order[:cut], order[cut:])
    ]
    assert (np.concatenate(parts) == whole[list(order)]).all()


@pytest.mark.parametrize("name", CHANGING)
def test_epoch_seed_and_index_each_change_the_picture(name):
    picture = np.repeat(images(1), 40, axis=0)
    base = build_augment(name, 0).arrays(picture, samples(40))
    assert (base != build_augment(name, 0).arrays(picture, samples(40, epoch=1))).any()
    assert (base != build_augment(name, 1).arrays(picture, samples(40))).any()
    assert len({image.tobytes() for image in base}) > 20


@pytest.mark.parametrize("name", NAMES)
def test_shape_type_and_input_are_kept(name):
    before = images(6)
    copy = before.copy()
    after = build_augment(name, 0).arrays(before, samples(6))
    assert after.shape == before.shape
    assert after.dtype == np.uint8
    assert after.flags.c_contiguous
    assert (before == copy).all()


def test_shift_moves_by_at_most_an_eighth_and_fills_with_black():
    dot = np.zeros((500, 3, 32, 32), np.uint8)
    dot[:, :, 16, 16] = 255
    moved = build_augment("shift", 0).arrays(dot, samples(500))
    places = np.argwhere(moved[:, 0] == 255)[:, 1:] - 16
    assert len(places) == 500
    assert set(places.ravel()) == set(range(-4, 5))
    assert len({tuple(place) for place in places}) == 81


def test_crop_flip_mirrors_half_of_the_images_and_moves_by_up_to_four():
    ramp = np.zeros((1000, 3, 16, 16), np.uint8)
    ramp[:] = np.arange(1, 17)
    changed = build_augment("crop_flip", 0).arrays(ramp, samples(1000))
    middle = changed[:, 0, 8, 6:10].astype(int)  # never reached by the black border
    falling = (np.diff(middle, axis=1) == -1).all(axis=1)
    rising = (np.diff(middle, axis=1) == 1).all(axis=1)
    assert (falling ^ rising).all()
    assert 400 < falling.sum() < 600
    assert set(middle[rising, 0] - 7) == set(range(-4, 5))


@given(st.integers(1, 900), st.integers(1, 900), st.integers(0, 2**32))
def test_random_boxes_lie_inside_the_picture(width, height, seed):
    draws = uniform(random_words(seed, samples(1), 40)).reshape(10, 4)
    for left, top, right, bottom in (
        random_box(width, height, draws),
        fitting_box(width, height),
    ):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


def test_random_boxes_have_the_areas_and_shapes_asked_for():
    draws = uniform(random_words(0, samples(3000), 40)).reshape(-1, 10, 4)
    boxes = np.array([random_box(500, 400, one) for one in draws])
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    areas = widths * heights / (500 * 400)
    assert 0.07 < areas.min() < 0.12
    assert 0.9 < areas.max() <= 1
    assert 0.4 < areas.mean() < 0.6
    assert ((widths / heights > 0.73) & (widths / heights < 1.36)).all()
    assert boxes[:, 0].min() == 0
    assert boxes[:, 2].max() == 500


def test_a_very_long_picture_still_gives_an_allowed_shape():
    draws = uniform(random_words(0, samples(1), 40)).reshape(10, 4)
    left, top, right, bottom = random_box(3000, 20, draws)
    assert 3 / 4 <= (right - left) / (bottom - top) <= 4 / 3 + 0.05


def test_evaluation_looks_at_the_middle():
    assert center_box(Image.new("RGB", (512, 256))) == (144, 16, 368, 240)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="crop_flip"):
        build_augment("flip", 0)
