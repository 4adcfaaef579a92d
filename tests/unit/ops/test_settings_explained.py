"""What `fedil recipes explain` and the reference page say of every setting."""

import json
import re
import tomllib

import pytest
from pydantic import Field

from client_worker.limits import LimitSettings
from fedil_model.methods import METHODS
from fedil_model.settings import MethodSettings
from ops.cli.main import main
from ops.reference.pages import DOCS, PAGES
from ops.reference.settings import choose, in_words, leaves, settings_of


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_has_a_sentence_and_says_its_values(method: str) -> None:
    settings = settings_of(method)
    assert len(settings) > 50
    assert [one.key for one in settings if not is_sentence(one.text)] == []
    assert [one.key for one in settings if not one.values] == []


def test_every_limit_of_a_site_has_a_sentence() -> None:
    unsaid = [key for key, schema in leaves(LimitSettings) if not is_sentence(schema.get("description", ""))]
    assert unsaid == []


def is_sentence(text: str) -> bool:
    return len(text.split()) >= 4 and text.endswith((".", ".)")) and "  " not in text


def test_a_setting_without_a_text_would_be_seen() -> None:
    class Mine(MethodSettings):
        said: float = Field(default=0.5, gt=0.0, le=1.0)
        """Share of what it is."""
        unsaid: int = 1

    texts = {key: schema.get("description", "") for key, schema in leaves(Mine)}
    assert [key for key, text in texts.items() if not is_sentence(text)] == ["unsaid"]
    assert {key: in_words(schema) for key, schema in leaves(Mine)}["said"] == "number above 0, at most 1"


def test_a_default_is_told_for_each_profile_where_they_differ() -> None:
    (start,) = choose(settings_of("fedil"), "method.client_init")
    assert start.values == '"global" or "server"'
    assert start.default == '"server" (fedil), "global" (paper)'
    (quorum,) = choose(settings_of("fedil"), "quorum")
    assert (quorum.key, quorum.default, quorum.values) == (
        "federation.quorum",
        "1.0",
        "number above 0, at most 1",
    )


def test_explain_shows_what_a_recipe_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "explain", "lr", "--recipe", "digits", "--set", "client.lr=0.25", "--json"]) == 0
    said = {one["key"]: one for one in json.loads(capsys.readouterr().out)}
    assert said.keys() == {"client.lr", "server.lr"}
    assert said["client.lr"]["value"] == 0.25
    assert said["client.lr"]["defaults"] == {"fedil": 0.03, "paper": 0.03}
    assert main(["recipes", "explain", "client.lr", "--recipe", "digits", "--set", "client.lr=0.25"]) == 0
    assert re.search(r"default +0\.03\n +recipe +0\.25\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("federation.quorm", "did you mean federation.quorum?"),
        ("deadline_second", "did you mean federation.deadline_seconds?"),
        ("method.mixup", "semifl has: add --set method.name=semifl"),
        ("qqq", "see: fedil recipes explain"),
    ],
)
def test_a_misspelt_setting_gets_the_nearest_name(
    key: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipes", "explain", key]) == 2
    assert hint in capsys.readouterr().err


def test_a_resolved_recipe_has_the_sentence_above_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "digits", "--resolved"]) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"^# Share of `clients_per_round` [^=]+\nfederation\.quorum = 1\.0$", shown, re.MULTILINE
    )
    keys = {line.partition(" = ")[0] for line in shown.splitlines() if re.match(r"[\w.]+ = ", line)}
    unset = set(re.findall(r"^# (\S+) is not set$", shown, re.MULTILINE))
    assert keys | unset == {one.key for one in settings_of("fedil")}
    assert tomllib.loads(shown)["name"] == "digits"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_from_the_code_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run ./ops/scripts/docs"
