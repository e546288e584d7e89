"""Each data set gives real pixels with the right labels, or says what is missing."""

import gzip
import hashlib
import pickle
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from hpcddp.config.schema import DataConfig
from hpcddp.data.augment import build_augment
from hpcddp.data.datasets import build_dataset
from hpcddp.errors import ConfigError, HpcddpError


def everything(dataset, augment=None):
    rows = [(0, index) for index in range(len(dataset))]
    images, labels = dataset.fetch(rows, augment) if augment else dataset.fetch(rows)
    return images.numpy(), labels.numpy()


def build(split="train", **fields):
    return build_dataset(DataConfig(**fields), split)


# ---------------------------------------------------------------- digits


def test_digits_are_all_there_once_in_two_even_parts():
    train, test = build(name="digits"), build("test", name="digits")
    assert len(train) + len(test) == 1797
    train_labels, test_labels = everything(train)[1], everything(test)[1]
    for label in range(10):
        share = (test_labels == label).sum() / (
            (train_labels == label).sum() + (test_labels == label).sum()
        )
        assert 0.19 < share < 0.21
        assert (train_labels == label).sum() > 130
    assert (train.num_classes, test.num_classes) == (10, 10)


def test_digits_are_images_that_their_labels_describe():
    (train_images, train_labels), (test_images, test_labels) = (
        everything(build(split, name="digits")) for split in ("train", "test")
    )
    flat = train_images.reshape(len(train_images), -1).astype(float)
    assert len(np.unique(flat, axis=0)) > 1400
    means = np.stack([flat[train_labels == label].mean(axis=0) for label in range(10)])
    distances = ((test_images.reshape(len(test_images), 1, -1) - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == test_labels).mean() > 0.85


def test_digits_are_colour_images_of_the_size_asked_for():
    images, labels = build(name="digits", image_size=24).fetch([(0, 3), (5, 3), (0, 9)])
    assert images.shape == (3, 3, 24, 24)
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert (images[:, 0] == images[:, 2]).all()
    assert (images[0] == images[1]).all()
    assert images.max() > 200


def test_mean_and_std_are_those_of_the_pixels():
    for fields in ({"name": "digits"}, {"name": "synthetic"}):
        dataset = build(**fields)
        images = everything(dataset)[0] / 255
        assert abs(images.mean(axis=(0, 2, 3)) - dataset.mean_c).max() < 0.03
        assert abs(images.std(axis=(0, 2, 3)) - dataset.std_c).max() < 0.02


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(HpcddpError, match=r"pip install 'hpcddp\[demo\]'"):
        build(name="digits")


# ---------------------------------------------------------------- Fashion-MNIST


def idx(array):
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.astype(np.uint8).tobytes()


@pytest.fixture
def fashion(tmp_path):
    images = np.random.Philox(0).random_raw(20 * 28 * 28).astype(np.uint8).reshape(20, 28, 28)
    labels = np.arange(20) % 10
    for prefix, count in (("train", 20), ("t10k", 7)):
        images_file = tmp_path / f"{prefix}-images-idx3-ubyte.gz"
        images_file.write_bytes(gzip.compress(idx(images[:count])))
        labels_file = tmp_path / f"{prefix}-labels-idx1-ubyte.gz"
        labels_file.write_bytes(gzip.compress(idx(labels[:count])))
    return tmp_path, images, labels


def test_fashion_mnist_reads_its_idx_files(fashion):
    root, images, labels = fashion
    train = build(name="fashion_mnist", root=str(root), image_size=28)
    assert len(build("test", name="fashion_mnist", root=str(root))) == 7
    got_images, got_labels = everything(train)
    assert (got_images == images[:, None]).all()
    assert (got_labels == labels).all()


def test_fashion_mnist_says_which_file_is_missing_and_where_it_comes_from(tmp_path):
    with pytest.raises(HpcddpError, match="apt-get install dataset-fashion-mnist") as caught:
        build(name="fashion_mnist", root=str(tmp_path))
    assert "train-images-idx3-ubyte.gz" in caught.value.message
    assert caught.value.code == "missing_data"


@pytest.mark.parametrize("kept", [0, 1, 10, 100, -1])
def test_a_torn_download_is_named(fashion, kept):
    file = fashion[0] / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ConfigError, match="train-images-idx3"):
        build(name="fashion_mnist", root=str(fashion[0]))


def test_a_flipped_byte_in_a_download_is_named(fashion):
    file = fashion[0] / "train-images-idx3-ubyte.gz"
    raw = bytearray(file.read_bytes())
    for place in (5, 100, len(raw) // 2, len(raw) - 6):
        file.write_bytes(bytes(raw[:place]) + bytes([raw[place] ^ 0x55]) + bytes(raw[place + 1 :]))
        if place > 10:  # the time stamp in the header means nothing
            with pytest.raises(ConfigError, match="train-images-idx3"):
                build(name="fashion_mnist", root=str(fashion[0]))


@pytest.mark.parametrize(
    "raw", [b"", b"\0\0\x08", b"\0\0\x08\x03\0\0", idx(np.zeros((2, 3))), b"x" * 99]
)
def test_a_file_of_another_kind_is_named(fashion, raw):
    file = fashion[0] / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(raw))
    with pytest.raises(ConfigError, match="no complete IDX file"):
        build(name="fashion_mnist", root=str(fashion[0]))


def test_images_and_labels_of_different_downloads_are_refused(fashion):
    file = fashion[0] / "train-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(idx(np.zeros(19))))
    with pytest.raises(ConfigError, match="20 images but 19 labels"):
        build(name="fashion_mnist", root=str(fashion[0]))


# ---------------------------------------------------------------- CIFAR-10


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A small CIFAR-10 in the published layout, whose checksums stand in for the published ones."""
    from torchvision.datasets import CIFAR10

    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    pixels = np.random.Philox(0).random_raw(6 * 3072).astype(np.uint8).reshape(6, 3072)

    def write(name, content):
        raw = pickle.dumps(content)
        (folder / name).write_bytes(raw)
        return [name, hashlib.md5(raw).hexdigest()]

    batches = [
        write(f"data_batch_{k + 1}", {"data": pixels[k : k + 1], "labels": [k]}) for k in range(5)
    ]
    test = [write("test_batch", {"data": pixels[5:], "labels": [9]})]
    meta = write("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(CIFAR10, "train_list", batches)
    monkeypatch.setattr(CIFAR10, "test_list", test)
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": meta[1]})
    return tmp_path, pixels


def test_cifar10_reads_the_python_batches(cifar):
    root, pixels = cifar
    images, labels = everything(build(name="cifar10", root=str(root)))
    assert (images == pixels[:5].reshape(5, 3, 32, 32)).all()
    assert list(labels) == [0, 1, 2, 3, 4]
    images, labels = everything(build("test", name="cifar10", root=str(root)))
    assert (images == pixels[5:].reshape(1, 3, 32, 32)).all()
    assert list(labels) == [9]


def test_cifar10_says_where_the_files_belong(tmp_path):
    with pytest.raises(HpcddpError, match=r"cifar-10-python\.tar\.gz") as caught:
        build(name="cifar10", root=str(tmp_path))
    assert str(tmp_path / "cifar-10-batches-py") in caught.value.message


def test_a_foreign_pickle_is_never_unpickled(cifar):
    class Mine:
        def __reduce__(self):
            return sys.exit, (3,)

    (cifar[0] / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps(Mine()))
    with pytest.raises(ConfigError, match="not the published ones"):
        build(name="cifar10", root=str(cifar[0]))


# ---------------------------------------------------------------- a tree of pictures


@pytest.fixture
def tree(tmp_path):
    """Three classes of one colour each, in sizes, modes and suffixes as they occur."""
    colours = {"n01": (250, 10, 10), "n02": (10, 250, 10), "n10": (10, 10, 250)}
    for split, count in (("train", 4), ("val", 2)):
        for name, colour in colours.items():
            (tmp_path / split / name).mkdir(parents=True)
            for k in range(count):
                picture = Image.new("RGB", (40 + 9 * k, 60 - 7 * k), colour)
                picture.save(tmp_path / split / name / f"{k}.JPEG")
    (tmp_path / "train" / "n02" / "notes.txt").write_text("no picture")
    (tmp_path / "train" / "n02" / "._0.JPEG").write_bytes(b"left by some archive tools")
    Image.new("L", (30, 30), 128).save(tmp_path / "train" / "n10" / "grey.png")
    return tmp_path


def test_a_tree_is_labelled_by_its_sorted_class_folders(tree):
    train = build(name="imagenet", root=str(tree), image_size=16)
    assert len(train) == 13
    assert train.num_classes == 3
    images, labels = everything(train)
    assert list(labels) == [0] * 4 + [1] * 4 + [2] * 5
    colours = images[:12].mean(axis=(2, 3))
    assert (colours.argmax(axis=1) == labels[:12]).all()
    assert abs(images[12].astype(int) - 128).max() <= 2


def test_the_validation_split_uses_the_same_labels(tree):
    for file in (tree / "val" / "n01").iterdir():
        file.unlink()
    images, labels = everything(build("test", name="imagenet", root=str(tree), image_size=16))
    assert list(labels) == [1, 1, 2, 2]
    assert list(images.mean(axis=(2, 3)).argmax(axis=1)) == [1, 1, 2, 2]


@pytest.mark.parametrize("name", ["none", "crop_flip", "random_resized_crop"])
def test_pictures_of_any_size_become_one_batch(tree, name):
    train = build(name="imagenet", root=str(tree), image_size=24)
    augment = build_augment(name, 1)
    images, _ = everything(train, augment)
    assert images.shape == (13, 3, 24, 24)
    alone, _ = train.fetch([(0, 7)], augment)
    assert (alone[0].numpy() == images[7]).all()


def test_a_broken_picture_is_named(tree):
    file = tree / "train" / "n01" / "2.JPEG"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(HpcddpError, match=r"n01/2\.JPEG cannot be decoded"):
        everything(build(name="imagenet", root=str(tree)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"root": None}, "needs data.root"),
        ({"root": "/nonexistent"}, "cannot list /nonexistent/train"),
    ],
)
def test_a_missing_tree_says_what_layout_is_needed(fields, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build(name="imagenet", **fields)
    assert "CLASS" in caught.value.message


def test_a_class_without_validation_folder_is_named(tree):
    for file in (tree / "val" / "n02").iterdir():
        file.unlink()
    (tree / "val" / "n02").rmdir()
    with pytest.raises(ConfigError, match="n02"):
        build("test", name="imagenet", root=str(tree))


# ---------------------------------------------------------------- synthetic, and all of them


def test_synthetic_images_are_a_function_of_their_index():
    dataset = build(name="synthetic", synthetic_samples=300, synthetic_classes=7, image_size=20)
    images, labels = everything(dataset)
    assert list(labels) == [index % 7 for index in range(300)]
    assert len(np.unique(images.reshape(300, -1), axis=0)) == 300
    again, _ = build(
        name="synthetic", synthetic_samples=300, synthetic_classes=7, image_size=20
    ).fetch([(4, 250), (9, 3)])
    assert (again.numpy() == images[[250, 3]]).all()


def test_synthetic_classes_can_be_learnt_and_the_test_images_are_new():
    fields = {"name": "synthetic", "synthetic_samples": 200, "synthetic_classes": 5}
    images, labels = everything(build(**fields))
    test_images, test_labels = everything(build("test", **fields))
    assert len(test_labels) == 40
    flat, test_flat = (
        array.reshape(len(array), -1).astype(float) for array in (images, test_images)
    )
    assert not {row.tobytes() for row in flat} & {row.tobytes() for row in test_flat}
    means = np.stack([flat[labels == label].mean(axis=0) for label in range(5)])
    distances = ((test_flat[:, None] - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == test_labels).all()


def test_every_data_set_survives_the_trip_into_a_worker(tree, cifar, fashion):
    for fields in (
        {"name": "digits"},
        {"name": "synthetic"},
        {"name": "fashion_mnist", "root": str(fashion[0])},
        {"name": "cifar10", "root": str(cifar[0])},
        {"name": "imagenet", "root": str(tree)},
    ):
        dataset = build(**fields)
        copy = pickle.loads(pickle.dumps(dataset))
        for ours, theirs in zip(dataset.fetch([(0, 1)]), copy.fetch([(0, 1)]), strict=True):
            assert torch.equal(ours, theirs)


def test_an_unknown_name_or_split_is_refused():
    with pytest.raises(ConfigError):
        build(name="mnist")
    with pytest.raises(ConfigError):
        build("val", name="digits")
