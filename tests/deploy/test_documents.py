"""What the documents of the deployment say people should type."""

import re
import shlex

import helm_python
import pytest

from tests.deploy.composed import COMPOSE, load
from tests.deploy.programs import parse
from tests.deploy.rendered import CHART, EXAMPLES, NAMESPACE, RELEASE, example
from tests.deployment import ROOT

README, RUNBOOKS = (
    (ROOT / "ops" / "deploy" / name).read_text(encoding="utf-8") for name in ("README.md", "RUNBOOKS.md")
)


def notes(name: str) -> str:
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(example(name), name=RELEASE, namespace=NAMESPACE)
    (text,) = [text for path, text in rendered.items() if path.endswith("NOTES.txt")]
    return text


def lines() -> list[str]:
    """Of all documents, without comments and prompts, continued lines joined"""
    examples = "".join((CHART / "examples" / f"{name}.yaml").read_text() for name in EXAMPLES)
    texts = [README, RUNBOOKS, re.sub(r"^# +", "", examples, flags=re.MULTILINE), *map(notes, EXAMPLES)]
    return [
        re.sub(r"^[$#] | {2,}#.*", "", line)
        for text in texts
        for line in re.sub(r"\\\n\s*", "", text).splitlines()
    ]


def test_commands_are_ones_that_the_programs_take() -> None:
    """`fedil …`, and whatever follows the image's name or python -m"""
    commands = [
        shlex.split(found[1])
        for line in lines()
        if (found := re.search(r"(?:^fedil|ops\.cli) ([a-z].*)$", line))
    ]
    assert len(commands) >= 5
    for words in commands:
        parse(["ops.cli", *words])


def test_services_and_profiles_that_are_named_exist() -> None:
    services = load({"FEDIL_USER": "1:1"})["services"]
    named = re.findall(r"docker compose (?:--profile (\w+) )?run --rm ([\w-]+)", README)
    assert {service for _, service in named} == {"accounts", "accounts-tls"}
    for profile in re.findall(r"--profile (\w+)", README):
        assert any(profile in service.get("profiles", []) for service in services.values())


def test_the_variables_of_compose_are_explained() -> None:
    used = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text()))
    assert used <= set(re.findall(r"\b[A-Z][A-Z_]+\b", README))


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert (COMPOSE.parent / target).exists(), target


@pytest.mark.parametrize("name", EXAMPLES)
def test_notes_name_the_secrets_that_are_needed(name: str) -> None:
    values = example(name)
    wanted = {
        values["server"]["credentialsSecret"],
        *(one["credentialsSecret"] for one in values["sites"].values()),
    }
    wanted |= {values["brokers"]["filesSecret"]} if "brokers" in values else set()
    wanted |= {values["keda"]["credentialsSecret"]} if "keda" in values else set()
    (said,) = re.findall(r"get secret (.*)", notes(name))
    assert set(said.split()) == wanted
