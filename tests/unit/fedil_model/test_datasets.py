import gzip
import hashlib
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets import DATASETS, digits, open_dataset
from fedil_model.data.datasets.interface import Dataset
from fedil_model.errors import DataError, SettingError
from fedil_model.settings import DataSettings


def an_image_array(num: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num, *shape), dtype=np.uint8)


def test_digits_need_no_files_and_have_a_fixed_stratified_test_set() -> None:
    dataset = open_dataset(DataSettings())
    train, test = dataset.load_train(), dataset.load_test()
    assert train.inputs.shape == (1438, 1, 8, 8)
    assert test.inputs.shape == (359, 1, 8, 8)
    assert train.inputs.dtype == torch.uint8
    assert train.labels.dtype == torch.int64
    assert train.inputs.max() == 255
    assert test.labels.bincount().tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert torch.equal(test.inputs, open_dataset(DataSettings()).load_test().inputs)
    normalised = dataset.views.plain(train.inputs)
    assert abs(normalised.mean()) < 0.01
    assert abs(normalised.std() - 1) < 0.01


def test_digits_are_scikit_learns_and_found_even_if_their_file_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    straight = digits.digits().load_train()
    monkeypatch.setattr(digits, "CSV_IN_SKLEARN", "moved/elsewhere.csv")
    through_sklearn = digits.digits().load_train()
    assert torch.equal(straight.inputs, through_sklearn.inputs)
    assert torch.equal(straight.labels, through_sklearn.labels)


@pytest.mark.parametrize("name", ["digits", "mnist", "svhn"])
def test_digits_of_any_kind_are_not_flipped(name: str) -> None:
    views = open_dataset(DataSettings(name=name, root=Path("nowhere"))).views
    assert isinstance(views, ImageViews)
    assert not views.flip


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"folder", "npz", "csv"}))
def test_opening_reads_no_file_and_shapes_fit_together(name: str) -> None:
    dataset = open_dataset(DataSettings(name=name, root=Path("nowhere")))
    raw = torch.zeros(2, *dataset.input_shape, dtype=torch.uint8)
    assert dataset.views.plain(raw).shape == (2, *dataset.input_shape)
    others = {"cifar100": 100, "pathmnist": 9, "pneumoniamnist": 2}
    assert len(dataset.class_names) == len(set(dataset.class_names)) == others.get(name, 10)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())


@pytest.fixture
def mnist_root(tmp_path: Path) -> Path:
    """Seven training and three test pictures in the authors' own format."""
    for name in ("MNIST", "FashionMNIST"):
        raw = tmp_path / name / "raw"
        raw.mkdir(parents=True)
        for part, num in (("train", 7), ("t10k", 3)):
            write_idx(raw / f"{part}-images-idx3-ubyte", an_image_array(num, 28, 28))
            write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(num, dtype=np.uint8))
    return tmp_path


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_mnist_is_read_from_its_original_files(name: str, mnist_root: Path) -> None:
    dataset = open_dataset(DataSettings(name=name, root=mnist_root))
    train, test = dataset.load_train(), dataset.load_test()
    assert torch.equal(train.inputs, torch.from_numpy(an_image_array(7, 28, 28))[:, None])
    assert train.labels.tolist() == list(range(7))
    assert test.inputs.shape == (3, 1, 28, 28)


@pytest.mark.parametrize("folder", [".", "raw", "FashionMNIST/raw"])
def test_fashion_mnist_is_read_packed_as_its_mirror_gives_it(
    folder: str, mnist_root: Path, tmp_path: Path
) -> None:
    place = tmp_path / "packed" / folder
    place.mkdir(parents=True)
    for file in (mnist_root / "FashionMNIST/raw").iterdir():
        (place / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    train = open_dataset(DataSettings(name="fashion_mnist", root=tmp_path / "packed")).load_train()
    assert torch.equal(train.inputs, torch.from_numpy(an_image_array(7, 28, 28))[:, None])
    assert train.labels.tolist() == list(range(7))


def test_the_files_of_mnist_are_not_taken_for_those_of_fashion_mnist(mnist_root: Path) -> None:
    raw = mnist_root / "MNIST/raw"
    assert len(open_dataset(DataSettings(name="mnist", root=raw)).load_test().labels) == 3
    with pytest.raises(
        DataError, match=r"there is no .*MNIST/raw/FashionMNIST/raw/t10k-images-idx3-ubyte; set"
    ):
        open_dataset(DataSettings(name="fashion_mnist", root=raw)).load_test()


def test_a_damaged_file_is_an_error_of_one_line(mnist_root: Path) -> None:
    (mnist_root / "MNIST/raw/train-images-idx3-ubyte").write_bytes(gzip.compress(b"not an idx file"))
    with pytest.raises(DataError, match=r"MNIST: the train files are missing or damaged"):
        open_dataset(DataSettings(name="mnist", root=mnist_root)).load_train()


@pytest.fixture
def cifar_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pictures a batch, pickled as the authors did; torchvision's check of the real files is off."""
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda _: True)
    monkeypatch.setattr(CIFAR10, "_load_meta", lambda _: None)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for place, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        batch = {"data": an_image_array(2, 3072, seed=place), "labels": [place, 9 - place]}
        (folder / name).write_bytes(pickle.dumps(batch))
    return tmp_path


def test_cifar_is_read_channels_first(cifar_root: Path) -> None:
    train = open_dataset(DataSettings(name="cifar10", root=cifar_root)).load_train()
    assert train.inputs.shape == (10, 3, 32, 32)
    assert train.inputs.is_contiguous()
    assert torch.equal(train.inputs[:2].flatten(1), torch.from_numpy(an_image_array(2, 3072, seed=0)))
    assert train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]


def test_cifar_is_unpacked_where_its_archive_lies_and_found_from_inside(
    cifar_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import CIFAR10

    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / CIFAR10.filename, "w:gz") as archive:
        archive.add(cifar_root / CIFAR10.base_folder, CIFAR10.base_folder)
    settings = DataSettings(name="cifar10", root=packed)
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz is damaged"):
        open_dataset(settings).load_test()
    content = (packed / CIFAR10.filename).read_bytes()
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(content).hexdigest())
    assert open_dataset(settings).load_test().labels.tolist() == [5, 4]
    inside = DataSettings(name="cifar10", root=packed / CIFAR10.base_folder)
    assert len(open_dataset(inside).load_train().labels) == 10


def test_svhn_is_read_from_its_matlab_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.io  # type: ignore[import-untyped]
    from torchvision.datasets import SVHN

    monkeypatch.setattr(SVHN, "_check_integrity", lambda _: True)
    images = an_image_array(4, 32, 32, 3)
    written = {"X": images.transpose(1, 2, 3, 0), "y": np.array([[1], [10], [3], [9]], dtype=np.uint8)}
    scipy.io.savemat(tmp_path / "test_32x32.mat", written)
    test = open_dataset(DataSettings(name="svhn", root=tmp_path)).load_test()
    assert torch.equal(test.inputs, torch.from_numpy(images).permute(0, 3, 1, 2))
    assert test.labels.tolist() == [1, 0, 3, 9]  # the file writes 10 for the digit 0


@pytest.mark.parametrize(("name", "channels"), [("pathmnist", (3,)), ("pneumoniamnist", ())])
def test_medmnist_is_read_from_its_npz_file(name: str, channels: tuple[int, ...], tmp_path: Path) -> None:
    images = an_image_array(4, 28, 28, *channels)
    labels = np.array([[0], [1], [1], [0]], dtype=np.uint8)
    np.savez(tmp_path / f"{name}.npz", test_images=images, test_labels=labels)
    test = open_dataset(DataSettings(name=name, root=tmp_path)).load_test()
    assert test.inputs.shape == (4, len(channels) * 2 + 1, 28, 28)
    assert torch.equal(
        test.inputs, torch.from_numpy(images).reshape(4, 28, 28, len(channels) * 2 + 1).permute(0, 3, 1, 2)
    )
    assert test.labels.tolist() == [0, 1, 1, 0]
    with pytest.raises(DataError, match=rf"npz: .*{name}\.npz: it has no train_images$"):
        open_dataset(DataSettings(name=name, root=tmp_path)).load_train()
    with pytest.raises(
        DataError, match=rf"there is no .*nowhere/{name}\.npz: copy MedMNIST's {name}\.npz there"
    ):
        open_dataset(DataSettings(name=name, root=tmp_path / "nowhere")).load_test()


def test_medmnist_of_another_size_is_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "pathmnist.npz",
        test_images=an_image_array(2, 64, 64, 3),
        test_labels=np.zeros((2, 1), np.uint8),
    )
    with pytest.raises(DataError, match="test_images has 3×64×64 images, not 3×28×28"):
        open_dataset(DataSettings(name="pathmnist", root=tmp_path)).load_test()


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "svhn"])
def test_missing_files_say_what_where_and_what_to_do(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(DataSettings(name=name, root=tmp_path)).load_test()
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        name.upper(),
        "test files",
        str(tmp_path),
        "data.download=true",
        "--set data.root=",
        "there is no",
    ):
        assert part in message


def test_a_dataset_with_files_asks_for_a_root() -> None:
    with pytest.raises(DataError, match=r"--set data\.root="):
        open_dataset(DataSettings(name="mnist")).load_train()


def save_picture(path: Path, value: int, mode: str = "RGB", size: tuple[int, int] = (9, 5)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


@pytest.fixture
def parted_folder(tmp_path: Path) -> Path:
    for part, num in (("train", 3), ("test", 1)):
        for place, name in enumerate(("cat", "dog")):
            for number in range(num):
                save_picture(tmp_path / part / name / f"{number}.png", 10 * place + number)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not a picture")
    return tmp_path


def test_a_folder_with_train_and_test(parted_folder: Path) -> None:
    dataset = open_dataset(DataSettings(name="folder", root=parted_folder, options={"size": 16}))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.input_shape == (3, 16, 16)
    train, test = dataset.load_train(), dataset.load_test()
    assert train.inputs.shape == (6, 3, 16, 16)
    assert train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert test.labels.tolist() == [0, 1]
    assert dataset.views.strong(train.inputs, torch.Generator().manual_seed(0)).shape == train.inputs.shape


def test_a_folder_without_parts_holds_a_share_of_every_class_out(tmp_path: Path) -> None:
    for number in range(10):
        for name in ("a", "b"):
            save_picture(tmp_path / name / f"{number}.jpg", 20 * number, mode="L")
    options = {"size": 8, "gray": True, "test_share": 0.3}
    dataset = open_dataset(DataSettings(name="folder", root=tmp_path, options=options))
    train, test = dataset.load_train(), dataset.load_test()
    assert train.labels.bincount().tolist() == [7, 7]
    assert test.labels.bincount().tolist() == [3, 3]
    assert train.inputs.shape == (14, 1, 8, 8)
    together = torch.cat((train.inputs, test.inputs))[:, 0, 0, 0].tolist()
    assert sorted(together) == sorted([20 * number for number in range(10)] * 2)


def test_a_picture_that_cannot_be_read_is_named(parted_folder: Path) -> None:
    (parted_folder / "train/dog/1.png").write_bytes(b"\x89PNG broken")
    dataset = open_dataset(DataSettings(name="folder", root=parted_folder))
    with pytest.raises(DataError, match=r"cannot read .*dog.1\.png"):
        dataset.load_train()


@pytest.mark.parametrize(
    ("prepare", "options", "error", "message"),
    [
        (lambda _: None, {}, DataError, "at least two"),
        (
            lambda root: [(root / name).mkdir() for name in "ab"],
            {"test_share": 1.5},
            SettingError,
            "test_share",
        ),
        (lambda root: [(root / name).mkdir() for name in "ab"], {"sise": 3}, SettingError, "sise"),
    ],
)
def test_a_folder_that_cannot_work_is_refused_when_opened(
    tmp_path: Path,
    prepare: Callable[[Path], object],
    options: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    prepare(tmp_path)
    with pytest.raises(error, match=message):
        open_dataset(DataSettings(name="folder", root=tmp_path, options=options))


def test_a_folder_without_pictures_or_without_a_root_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="no pictures"):
        open_dataset(DataSettings(name="folder", root=tmp_path)).load_train()
    with pytest.raises(DataError, match=r"data\.root .*, not None \(sites .* data\.options\.classes\)"):
        open_dataset(DataSettings(name="folder"))


def test_a_folder_whose_classes_are_named_is_opened_where_it_is_not(parted_folder: Path) -> None:
    options = {"size": 16, "classes": ["dog", "cat"]}
    away = open_dataset(DataSettings(name="folder", root=Path("nowhere"), options=options))
    assert (away.class_names, away.input_shape) == (("dog", "cat"), (3, 16, 16))
    with pytest.raises(DataError, match=r"data\.root must be a folder .*, not nowhere"):
        away.load_train()
    here = open_dataset(DataSettings(name="folder", root=parted_folder, options=options))
    assert here.load_train().inputs[:, 0, 0, 0].tolist() == [10, 11, 12, 0, 1, 2]
    assert here.load_train().labels.tolist() == [0, 0, 0, 1, 1, 1]
    more = DataSettings(name="folder", root=parted_folder, options={"classes": ["cat", "dig", "dog"]})
    with pytest.raises(DataError, match=r"data\.options\.classes and the folders in .* differ in dig$"):
        open_dataset(more).load_test()


@pytest.mark.parametrize("classes", ["cat", 5, ["cat"], ["cat", "cat"], ["cat", 3], ["cat", ""]])
def test_classes_that_cannot_be_are_refused(classes: object) -> None:
    with pytest.raises(SettingError, match=r"data\.options\.classes"):
        open_dataset(DataSettings(name="folder", options={"classes": classes}))


USERS_DATASET = """
import torch
from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.interface import Dataset, Samples

def blobs(num=20, root=None):
    labels = torch.arange(num) % 2
    samples = Samples(torch.zeros(num, 3) + labels[:, None], labels)
    return Dataset((str(root), "b"), (3,), TensorViews(), lambda: samples, lambda: samples)

def not_a_dataset():
    return [1, 2, 3]
"""


@pytest.fixture
def users_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_own_dataset.py").write_text(USERS_DATASET)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "users_own_dataset"


def test_a_users_dataset_gets_its_options_and_the_root_if_it_asks(users_dataset: str) -> None:
    dataset: Dataset = open_dataset(
        DataSettings(name=f"{users_dataset}:blobs", root=Path("here"), options={"num": 6})
    )
    assert dataset.class_names == ("here", "b")
    assert dataset.load_train().inputs.shape == (6, 3)


def test_a_users_callable_that_returns_something_else_is_refused(users_dataset: str) -> None:
    with pytest.raises(SettingError, match=r"returned a list, not a .*Dataset"):
        open_dataset(DataSettings(name=f"{users_dataset}:not_a_dataset"))


def test_an_unknown_dataset_lists_the_known() -> None:
    with pytest.raises(SettingError, match=r"cifar10, cifar100, csv, digits, .*module:callable"):
        open_dataset(DataSettings(name="imagenet"))
