import json
from pathlib import Path

import pytest

from fedil_model.errors import SettingError
from fedil_model.methods import make_learning
from fedil_model.methods.fedil.settings import FedILSettings
from server_worker.run.recipe import load_recipe, make_recipe, numbers_depend_on, parse_override


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"client": {"lrr": 1.0}}, "unknown setting client.lrr; did you mean client.lr?"),
        ({"methd": {}}, "unknown setting methd; did you mean method?"),
        ({"client": {"lr": -1}}, "client.lr: Input should be greater than 0"),
        ({"split": {"labelled": 5, "labelled_fraction": 0.1}}, "give exactly one of"),
        (
            {"split": {"labelled": 5, "clients": 3}},
            "clients_per_round + over_select is 5, but split.clients is 3",
        ),
        (
            {"federation": {"max_staleness": 2, "in_flight": 9}},
            'federation: mode = "rounds" has no use for in_flight and max_staleness: leave out',
        ),
        ({"federation": {"mode": "buffered", "quorum": 0.5}}, 'mode = "buffered" has no use for quorum'),
        (
            {"federation": {"mode": "buffered", "in_flight": 4}},
            "in_flight is 4, too few to give buffer_size = 5 answers",
        ),
        (
            {"split": {"labelled": 5, "clients": 9}, "federation": {"mode": "buffered"}},
            "federation.in_flight is 10, but split.clients is 9",
        ),
        ({"federation": {"mode": "buffered", "max_staleness": -1}}, "federation.max_staleness"),
        ({"client": {"momentum": 0.0}}, "nesterov needs momentum"),
        ({"profile": [1]}, "profile: Input should be 'fedil' or 'paper'"),
        ({"profile": "papr"}, "profile: Input should be 'fedil' or 'paper'"),
        ({"client": {"lr": float("nan")}}, "client.lr"),
    ],
)
def test_a_bad_setting_is_named_with_what_to_do(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        make_recipe(values)
    assert message in str(caught.value)


def test_every_mistake_is_listed_not_only_the_first() -> None:
    with pytest.raises(SettingError) as caught:
        make_recipe({"client": {"lrr": 1}, "server": {"epochs": 0}})
    assert len(str(caught.value).splitlines()) == 2


def test_the_paper_profile_switches_every_improvement_off() -> None:
    paper = make_recipe({"profile": "paper"})
    assert paper.network.norm == "bn"
    assert paper.server.pretrain_epochs == 0
    assert (paper.server.strong_weight, paper.server.pretrain_strong_weight) == (0.0, 0.0)
    method = paper.method
    assert isinstance(method, FedILSettings)
    assert (method.client_init, method.pseudo_source, method.cosine_reference) == ("global", "live", "global")
    assert method.weight_pseudo_weak == 0.0
    assert (method.on_reject, method.normalise, method.soft_cosine) == ("drop", "none", False)
    assert (method.server_momentum, method.ema_decay, method.demote_after) == (0.0, 0.0, 0)
    assert (method.threshold, method.credibility) == (0.95, 7)
    assert (method.weight_pseudo, method.weight_consistency, method.weight_credible) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_a_saved_recipe_which_names_every_key_can_be_read_again(mode: str) -> None:
    recipe = make_recipe({"federation": {"mode": mode}})
    assert make_recipe(recipe.model_dump(mode="json")) == recipe


def test_in_buffered_mode_fewer_clients_than_a_round_would_ask_are_no_mistake() -> None:
    few = {"mode": "buffered", "in_flight": 3, "buffer_size": 2}
    assert make_recipe({"split": {"labelled": 5, "clients": 3}, "federation": few}).federation.in_flight == 3


def test_a_key_in_the_recipe_wins_over_the_profile() -> None:
    assert make_recipe({}).model_dump()["method"]["client_init"] == "server"
    chosen = make_recipe({"method": {"client_init": "global"}})
    assert chosen.model_dump()["method"]["client_init"] == "global"


def test_the_part_that_tasks_carry_survives_json() -> None:
    recipe = make_recipe({"profile": "paper", "seed": 3})
    assert make_learning(json.loads(recipe.learning().model_dump_json())) == recipe.learning()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("client.lr=0.1", {"client": {"lr": 0.1}}),
        ("profile=paper", {"profile": "paper"}),
        ('profile="paper"', {"profile": "paper"}),
        ("client.nesterov=false", {"client": {"nesterov": False}}),
        ("data.root=/a=b", {"data": {"root": "/a=b"}}),
    ],
)
def test_overrides_are_toml_values_or_plain_words(text: str, expected: dict[str, object]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["client.lr", "=3", "a..b=1", "a b=1"])
def test_an_override_that_is_none_says_how_to_write_one(text: str) -> None:
    with pytest.raises(SettingError, match="key=value"):
        parse_override(text)


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot read recipe .*nowhere\.toml"):
        load_recipe(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(SettingError, match=r"bad\.toml is not valid TOML"):
        load_recipe(tmp_path / "bad.toml")


def test_a_recipe_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match=r"bad\.toml is not UTF-8"):
        load_recipe(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("given", "epochs"), [({}, 31), ({"baseline_epochs": 7}, 7), ({"baseline_epochs": 0}, 0)]
)
def test_server_only_training_has_the_servers_whole_budget_unless_told(
    given: dict[str, int], epochs: int
) -> None:
    recipe = make_recipe({"rounds": 9, "server": {"epochs": 3, "pretrain_epochs": 4}, **given})
    assert recipe.floor_epochs == epochs


def test_what_changes_no_number_may_differ_between_a_run_and_its_resumption() -> None:
    base = make_recipe({"rounds": 5})
    free = make_recipe(
        {
            "rounds": 9,
            "data": {"root": "/elsewhere", "download": True},
            "evaluate_every": 3,
            "baseline_epochs": 0,
            "federation": {"deadline_seconds": 1.0, "quorum": 0.5},
        }
    )
    assert numbers_depend_on(base) == numbers_depend_on(free)
    for changes in (
        {"name": "x"},
        {"seed": 1},
        {"client": {"lr": 0.5}},
        {"federation": {"clients_per_round": 2}},
    ):
        assert numbers_depend_on(base) != numbers_depend_on(make_recipe({"rounds": 5, **changes}))


def test_a_cosine_schedule_counts_the_rounds() -> None:
    short, long = (make_recipe({"rounds": n, "client": {"lr_schedule": "cosine"}}) for n in (5, 9))
    assert numbers_depend_on(short) != numbers_depend_on(long)


def test_overrides_apply_on_top_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("rounds = 7\n[client]\nlr = 0.5\nepochs = 2\n")
    recipe = load_recipe(tmp_path / "r.toml", ["client.lr=0.25", "seed=9"])
    assert (recipe.rounds, recipe.seed, recipe.client.lr, recipe.client.epochs) == (7, 9, 0.25, 2)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["client.lrr=0.1"], "--set client.lrr=0.1: unknown setting client.lrr; did you mean client.lr?"),
        (["clint.lr=1"], "--set clint.lr=1: unknown setting clint; did you mean client?"),
        (["seed=1", "rounds=0"], "--set rounds=0: rounds: Input should be greater than 0"),
        (["rounds=5", "rounds=0"], "--set rounds=0: rounds: Input should be greater than 0"),
        (["server={epochs = 0}"], "--set server={epochs = 0}: server.epochs: Input should be greater than 0"),
        (["client.momentum=0"], "FILE with --set client.momentum=0: client: nesterov needs momentum > 0"),
        (["server.momentum=0"], "--set server.momentum=0: server: nesterov needs momentum > 0"),
        (["split.labelled=5", "split.clients=2"], "FILE with --set split.labelled=5 --set split.clients=2: "),
    ],
)
def test_what_is_wrong_in_an_override_is_blamed_on_it(
    overrides: list[str], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "r.toml"
    file.write_text("rounds = 7\n[client]\nlr = 0.5\n")
    with pytest.raises(SettingError) as caught:
        load_recipe(file, overrides)
    assert str(caught.value).startswith(says.replace("FILE", str(file)))


def test_what_is_wrong_in_the_file_is_not_blamed_on_overrides(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[client]\nlrr = 0.5\n")
    with pytest.raises(SettingError) as caught:
        load_recipe(tmp_path / "r.toml", ["client.lr=0.1", "seed=3"])
    assert str(caught.value).startswith(f"{tmp_path / 'r.toml'}: unknown setting client.lrr")


@pytest.mark.parametrize("value", ["true", '"1"'])
@pytest.mark.parametrize("key", ["rounds", "client.lr", "method.promote_lag", "federation.sites.a"])
def test_neither_a_truth_value_nor_a_text_is_a_number(key: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"{key}: Input should be a valid (integer|number)"):
        make_recipe({}, overrides=[f"{key}={value}"])
    (tmp_path / "r.toml").write_text(f"{key} = {value}\n")
    with pytest.raises(SettingError, match=f"{key}: Input should be a valid (integer|number)"):
        load_recipe(tmp_path / "r.toml")


def test_a_whole_number_is_a_number_and_a_text_a_path() -> None:
    recipe = make_recipe({}, overrides=["client.lr=1", "data.root=/somewhere"])
    assert (recipe.client.lr, recipe.data.root) == (1.0, Path("/somewhere"))


@pytest.mark.parametrize(
    ("written", "override", "expected"),
    [
        ({"labelled": 50}, "split.labelled_fraction=0.1", (None, 0.1)),
        ({"labelled_fraction": 0.01}, "split.labelled=600", (600, None)),
    ],
)
def test_an_override_of_how_many_labels_takes_the_place_of_the_other_way_to_say_it(
    written: dict[str, float], override: str, expected: tuple[int | None, float | None]
) -> None:
    split = make_recipe({"split": {"clients": 7, **written}}, overrides=[override]).split
    assert (split.labelled, split.labelled_fraction) == expected
    assert split.clients == 7


def test_two_ways_to_say_how_many_labels_in_overrides_contradict_each_other() -> None:
    with pytest.raises(
        SettingError, match=r"--set split\.labelled=5 --set split\.labelled_fraction=0\.1: split: give"
    ):
        make_recipe({}, overrides=["split.labelled=5", "split.labelled_fraction=0.1"])


def test_an_override_with_two_keys_is_not_half_obeyed() -> None:
    with pytest.raises(SettingError, match="one key=value at a time"):
        parse_override("rounds=3\nseed=4")


def test_a_value_in_the_place_of_a_table_is_answered_with_what_is_in_it() -> None:
    with pytest.raises(
        SettingError, match=r"^--set client=3: client: is a table of settings: batch_size, .*lr, "
    ):
        make_recipe({}, overrides=["client=3"])


def test_a_recipe_may_build_on_another_and_come_in_sizes(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(
        'size = "cpu"\nrounds = 5\n[sizes.cpu]\nnetwork.width = 8\n[sizes.gpu]\nrounds = 9\nnetwork.width = 64\n'
    )
    (tmp_path / "other.toml").write_text('base = "small"\nseed = 3\n[sizes.cpu]\nrounds = 7\n')
    small, other = tmp_path / "small.toml", tmp_path / "other.toml"

    def found(path: Path, *overrides: str) -> tuple[int, int, int]:
        recipe = load_recipe(path, overrides)
        return recipe.rounds, recipe.network.width, recipe.seed

    assert found(small) == (5, 8, 0)
    assert found(small, "size=gpu") == (9, 64, 0)
    assert found(small, "size=gpu", "rounds=2") == (2, 64, 0)
    assert found(other) == (7, 8, 3)
    assert found(other, "size=gpu") == (9, 64, 3)
    with pytest.raises(SettingError, match="there is no size 'tpu'; it has cpu, gpu"):
        found(small, "size=tpu")


def test_a_base_that_is_missing_or_leads_back(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('base = "b"\n')
    with pytest.raises(SettingError, match=r"cannot read recipe .*b\.toml"):
        load_recipe(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text('base = "a"\n')
    with pytest.raises(SettingError, match="base leads back to a"):
        load_recipe(tmp_path / "a.toml")
    (tmp_path / "c.toml").write_text("rounds = 2\n")
    with pytest.raises(SettingError, match="there is no size 'cpu'; it has none"):
        load_recipe(tmp_path / "c.toml", ["size=cpu"])


@pytest.mark.parametrize(
    "entry", ["10.1.0.0/33", "10.1.0.1/16", "a b", "", "*", "*.*.example", "host:80", "1.2.3"]
)
def test_an_address_that_can_match_nothing_is_refused(entry: str) -> None:
    with pytest.raises(
        SettingError, match=r"federation.addresses.default.*is not an IP address, a network such"
    ):
        make_recipe({"federation": {"addresses": {"default": ["10.1.0.0/16", entry]}}})


def test_addresses_belong_to_sites_of_the_recipe_and_change_no_number() -> None:
    with pytest.raises(SettingError, match=r"federation.addresses names nowhere, which is not a site"):
        make_recipe({"federation": {"addresses": {"nowhere": ["10.1.0.0/16"]}}})
    placed = make_recipe({"federation": {"addresses": {"default": ["10.1.0.0/16", "*.example", "gpu-3"]}}})
    assert numbers_depend_on(placed) == numbers_depend_on(make_recipe({}))


@pytest.mark.parametrize(
    ("overrides", "name", "description"),
    [
        ([], "tiny", "our digits"),
        (["data.name=digits"], "tiny", "our digits"),
        (["data.name=mnist"], "mnist", ""),
        (["data.name=mnist", "name=mine", "description=text"], "mine", "text"),
        (["data.name=mnist", "data.name=digits"], "tiny", "our digits"),
    ],
)
def test_with_other_data_a_recipe_is_named_after_those(
    overrides: list[str], name: str, description: str
) -> None:
    values = {"name": "tiny", "description": "our digits", "data": {"name": "digits"}}
    recipe = make_recipe(values, "file", overrides)
    assert (recipe.name, recipe.description) == (name, description)


def test_a_plugin_gives_its_run_a_name_that_a_folder_can_have() -> None:
    values = {"name": "tiny", "data": {"name": "digits"}}
    assert make_recipe(values, "file", ["data.name=tests.federation:blobs"]).name == "tests.federation-blobs"
    assert make_recipe(values, "file", ["data.name=_x:y"]).name == "x-y"
