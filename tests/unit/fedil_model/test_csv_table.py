import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.interface import Dataset
from fedil_model.data.split import make_split
from fedil_model.errors import DataError, SettingError
from fedil_model.settings import DataSettings, SplitSettings

HEADER = "id,clinic,age,sex,outcome\n"
TRAIN = HEADER + "1,south,40,f,ill\n2,north,60,m,well\n3,south,40,,ill\n4,north,,f,well\n"
TEST = HEADER + "5,east,50,x,well\n6,east,70,m,ill\n"
OPTIONS = {"label": "outcome", "site": "clinic", "ignore": ["id"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text(TRAIN)
    (tmp_path / "test.csv").write_text(TEST)
    return tmp_path


def opened(root: Path, **options: Any) -> Dataset:
    return open_dataset(DataSettings(name="csv", root=root, options={**OPTIONS, **options}))


def test_numbers_are_scaled_texts_become_categories_and_what_is_missing_is_zero(root: Path) -> None:
    dataset = opened(root)
    assert (dataset.class_names, dataset.input_shape) == (("ill", "well"), (3,))
    train = dataset.load_train()
    low, high = -0.707107, 1.414214
    assert train.inputs.tolist() == [
        pytest.approx(row, abs=1e-5) for row in ([low, 1, 0], [high, 0, 1], [low, 0, 0], [0, 1, 0])
    ]
    assert train.labels.tolist() == [0, 1, 0, 1]
    assert dataset.views.plain(train.inputs).dtype == torch.float32


def test_the_test_rows_have_the_scale_and_the_categories_of_the_training_rows(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    test = opened(root).load_test()
    assert test.inputs[:, 1:].tolist() == [[0, 0], [0, 1]]
    assert test.inputs[:, 0].tolist() == pytest.approx([(50 - 46.6667) / 9.42809, (70 - 46.6667) / 9.42809])
    assert caplog.messages == [f"{root}/test.csv: column 'sex': 0 of 2 values are missing, 1 unknown"]
    assert caplog.records[0].levelno == logging.WARNING


def test_one_file_holds_a_share_of_every_class_out_and_its_scale_knows_nothing_of_it(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    file.write_text("x;y\n" + "".join(f"{n};{'ab'[n % 2]}\n" for n in range(20)))
    dataset = opened(file, label="y", site="", ignore=[], delimiter=";")
    train, test = dataset.load_train(), dataset.load_test()
    assert (train.labels.bincount().tolist(), test.labels.bincount().tolist()) == ([8, 8], [2, 2])
    assert abs(float(train.inputs.mean())) < 1e-4
    assert float(train.inputs.std(correction=0)) == pytest.approx(1, abs=1e-4)


def test_each_client_holds_the_rows_of_its_site(root: Path) -> None:
    train = opened(root).load_train()
    assert train.owners is not None
    assert train.owners.tolist() == [1, 0, 1, 0]  # north, south
    labels, owners = train.labels.repeat(5).numpy(), train.owners.repeat(5).numpy()
    settings = SplitSettings(labelled=2, clients=2, partition="natural")
    split = make_split(labels, 2, settings, 0, owners)
    assert sorted([*split.labelled, *split.clients[0], *split.clients[1]]) == list(range(20))
    assert [set(owners[rows]) for rows in split.clients] == [{0}, {1}]
    three = SplitSettings(labelled=2, clients=3, partition="natural")
    with pytest.raises(DataError, match=r"split\.clients=3, but the data belongs to 2 clients"):
        make_split(labels, 2, three, 0, owners)
    with pytest.raises(DataError, match="does not say which client"):
        make_split(labels, 2, settings, 0)


def test_numbers_that_are_names_are_categories_when_listed_and_classes_may_be_ordered(root: Path) -> None:
    dataset = opened(root, categorical=["age"], classes=["well", "ill"])
    assert dataset.elsewhere["columns"]["age"] == {"values": ["40", "60"]}
    assert dataset.load_train().labels.tolist() == [1, 0, 1, 0]


def test_another_file_is_read_with_the_columns_of_the_training_rows(root: Path) -> None:
    read = opened(root).read_csv
    assert read is not None
    rows = read(root / "test.csv")
    assert torch.equal(rows.inputs, opened(root).load_test().inputs)
    assert rows.labels is not None
    assert (rows.labels.tolist(), list(rows.lines)) == ([1, 0], [2, 3])
    (root / "new.csv").write_text("sex,age\nm,70\n")
    rows = read(root / "new.csv")
    assert (rows.inputs.shape, rows.labels) == ((1, 3), None)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TRAIN, {"label": "outcom"}, r"no column 'outcom' \(data\.options\.label\); did you mean outcome\?"),
        (TRAIN, {"ignore": ["idd"]}, r"no column 'idd' \(data\.options\.ignore\); did you mean id\?"),
        (TRAIN.replace("60", "6O"), {}, r"row 3, column 'age': '6O' is not a number; or list"),
        (TRAIN.replace("60", "inf"), {}, r"row 3, column 'age': 'inf' is not a number"),
        (TRAIN + "5,north,3\n", {}, r"row 6 has 3 values, the header names 5"),
        (TRAIN + "5,north,3,f,\n", {}, r"row 6, column 'outcome': every row needs a label"),
        (TRAIN + "5,,3,f,ill\n", {}, r"row 6, column 'clinic': every row needs a site"),
        (
            TRAIN,
            {"classes": ["ill", "fine"]},
            r"row 3, column 'outcome': 'well' is none of the classes ill, fine",
        ),
        (TRAIN.replace("well", "ill"), {}, r"column 'outcome' has one class only"),
        (TRAIN.replace("age", "sex"), {}, r"every column needs a name of its own; 'sex' is not"),
        (
            TRAIN.replace(",", ";"),
            {},
            r"no row of column names separated by ','; set data\.options\.delimiter",
        ),
        (HEADER, {}, "no rows below its header"),
        (TRAIN.replace("40", "").replace("60", ""), {}, r"column 'age' has no value: leave it out"),
        (
            HEADER + "".join(f"{n},n,1,name {n},{'ab'[n % 2]}\n" for n in range(101)),
            {},
            r"column 'sex' has 101 different texts, at most 100",
        ),
        ("\udcff", {}, r"is no table in UTF-8"),
    ],
)
def test_what_is_wrong_is_named_with_file_row_and_column(
    text: str, options: dict[str, Any], message: str, root: Path
) -> None:
    (root / "train.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=rf"^csv: {root}/train\.csv.*{message}"):
        opened(root, **options).load_train()


def test_without_the_file_the_error_says_what_a_site_needs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not .*nowhere\.csv \(where it is not, data\.options needs classes"):
        opened(tmp_path / "nowhere.csv")
    with pytest.raises(SettingError, match="label"):
        open_dataset(DataSettings(name="csv", root=tmp_path))


@pytest.mark.parametrize(
    "columns", [{}, {"age": {"mean": 1.0}}, {"age": {"mean": 1.0, "std": 0.0}}, {"age": 3}]
)
def test_columns_of_a_recipe_that_cannot_be_are_refused(columns: object, root: Path) -> None:
    with pytest.raises(SettingError, match=r"data\.options\.columns"):
        opened(root, columns=columns)
