"""Which room may import which, and which modules may import each vendor; read from the source, without importing it."""

import subprocess
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ops.scripts.source_map import ROOT, code_lines, imports_of, sources

MAY_IMPORT: dict[str, set[str]] = {
    "fedil_model": set(),
    "broker_config": set(),
    "server_worker": {"fedil_model", "broker_config"},
    "client_worker": {"fedil_model", "broker_config"},
    "ops": {"fedil_model", "broker_config", "server_worker", "client_worker"},
}

FOR_USERS = ("ops/python/", "ops/examples/")
"""Where `import fedil` is: what users import, we do not"""

KNOWN_ONLY_IN = {
    "msgpack": ("broker_config/protocol/wire.py",),
    "pika": ("broker_config/transports/rabbitmq/*.py",),
    "redis": ("broker_config/stores/redis/*.py",),
    "prometheus_client": ("*/metrics.py",),
}

BYTES_THAT_RUN_CODE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
LONGEST_FILE = 350
UNTELLING_NAMES = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}


def undrawn_arrows(source: str, path: str) -> list[str]:
    room = path.partition("/")[0]
    package = {"fedil"} if path.startswith(FOR_USERS) else set()
    forbidden = (set(MAY_IMPORT) | {"tests", "fedil"}) - {room} - MAY_IMPORT[room] - package
    return [
        f"{path}:{found.line} imports {found.name}"
        for found in imports_of(source, path)
        if found.top in forbidden
    ]


def vendors_out_of_place(source: str, path: str) -> list[str]:
    return [
        f"{path}:{found.line} imports {found.name}"
        for found in imports_of(source, path)
        if found.top in KNOWN_ONLY_IN and not any(fnmatch(path, place) for place in KNOWN_ONLY_IN[found.top])
    ]


def torch_in_the_broker(source: str, path: str) -> list[str]:
    return [
        f"{path}:{found.line} imports {found.name}"
        for found in imports_of(source, path)
        if path.startswith("broker_config/") and found.top in {"torch", "torchvision"}
    ]


def torchvision_at_module_level(source: str, path: str) -> list[str]:
    return [
        f"{path}:{found.line} imports {found.name} when it is itself imported"
        for found in imports_of(source, path)
        if found.top == "torchvision" and found.at_module_level
    ]


def pickles(source: str, path: str) -> list[str]:
    return [
        f"{path}:{found.line} imports {found.name}"
        for found in imports_of(source, path)
        if found.top in BYTES_THAT_RUN_CODE
    ]


def too_long(source: str, path: str) -> list[str]:
    lines = code_lines(source)
    return [f"{path} has {lines} lines of code"] if lines > LONGEST_FILE else []


def untelling_name(source: str, path: str) -> list[str]:
    return [f"{path}: name it after what it does"] if Path(path).name in UNTELLING_NAMES else []


Rule = Callable[[str, str], list[str]]

# Sources that each rule must report: proves that the rule finds something at all.
VIOLATIONS: list[tuple[Rule, str, str]] = [
    (undrawn_arrows, "fedil_model/a.py", "import broker_config.protocol.wire"),
    (undrawn_arrows, "fedil_model/a.py", "from server_worker import round"),
    (undrawn_arrows, "broker_config/a.py", "def f():\n    from fedil_model.errors import LearningError"),
    (undrawn_arrows, "server_worker/a.py", "from client_worker.training import train"),
    (
        undrawn_arrows,
        "client_worker/a.py",
        "import importlib\nimportlib.import_module('server_worker.round.state')",
    ),
    (undrawn_arrows, "client_worker/a.py", "from ops.cli.main import main"),
    (undrawn_arrows, "ops/a.py", "from tests.unit import records"),
    (undrawn_arrows, "ops/a.py", "import fedil"),
    (undrawn_arrows, "fedil_model/deep/a.py", "from ...ops import cli"),
    (vendors_out_of_place, "server_worker/a.py", "import msgpack"),
    (
        vendors_out_of_place,
        "broker_config/transports/memory/transport.py",
        "from pika.exceptions import AMQPError",
    ),
    (vendors_out_of_place, "broker_config/stores/memory/store.py", "import redis.asyncio"),
    (vendors_out_of_place, "server_worker/coordinator.py", "from prometheus_client import Counter"),
    (torch_in_the_broker, "broker_config/protocol/wire.py", "def f():\n    import torch"),
    (
        torchvision_at_module_level,
        "fedil_model/data/datasets/mnist.py",
        "from torchvision.datasets import MNIST",
    ),
    (torchvision_at_module_level, "ops/a.py", "try:\n    import torchvision\nexcept ImportError:\n    pass"),
    (pickles, "server_worker/run/checkpoint.py", "from pickle import loads"),
    (too_long, "ops/a.py", "x = 1\n" * (LONGEST_FILE + 1)),
    (untelling_name, "ops/utils.py", ""),
]

ALLOWED: list[tuple[Rule, str, str]] = [
    (undrawn_arrows, "ops/examples/a.py", "import fedil"),
    (
        undrawn_arrows,
        "ops/a.py",
        "import server_worker.round.state, client_worker.training, broker_config, fedil_model",
    ),
    (undrawn_arrows, "server_worker/a.py", "from fedil_model.errors import LearningError"),
    (undrawn_arrows, "fedil_model/deep/a.py", "from ..errors import LearningError"),
    (vendors_out_of_place, "broker_config/protocol/wire.py", "import msgpack"),
    (vendors_out_of_place, "client_worker/metrics.py", "import prometheus_client"),
    (torchvision_at_module_level, "fedil_model/a.py", "def f():\n    import torchvision"),
    (torch_in_the_broker, "fedil_model/a.py", "import torch"),
    (too_long, "ops/a.py", "# why\n\n" * LONGEST_FILE + "x = 1\n"),
]

RULES = list(dict.fromkeys(rule for rule, _, _ in VIOLATIONS))


def name_of(value: object) -> str:
    return value.__name__ if callable(value) and hasattr(value, "__name__") else ""


@pytest.mark.parametrize(("rule", "path", "source"), VIOLATIONS, ids=name_of)
def test_each_rule_catches_what_it_forbids(rule: Rule, path: str, source: str) -> None:
    assert rule(source, path)


@pytest.mark.parametrize(("rule", "path", "source"), ALLOWED, ids=name_of)
def test_each_rule_lets_through_what_is_drawn(rule: Rule, path: str, source: str) -> None:
    assert rule(source, path) == []


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_the_code_keeps_the_rule(rule: Rule) -> None:
    problems = [problem for path, source in sources() for problem in rule(source, path)]
    assert problems == []


def test_every_room_is_looked_at() -> None:
    assert {path.partition("/")[0] for path, _ in sources()} == set(MAY_IMPORT)


def test_tests_too_have_telling_names_and_a_readable_length() -> None:
    files = [
        (path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in ROOT.glob("tests/**/*.py")
    ]
    assert len(files) > 1
    assert [
        text for path, source in files for text in too_long(source, path) + untelling_name(source, path)
    ] == []


def test_the_map_lists_rooms_and_folders_with_sizes_and_imports() -> None:
    done = subprocess.run([ROOT / "ops/scripts/map"], capture_output=True, encoding="utf-8", check=True)
    shown = {name: (size, to) for name, size, to in map(map_line, done.stdout.splitlines())}
    for room, allowed in MAY_IMPORT.items():
        assert shown[room] == (
            sum(code_lines(text) for path, text in sources() if path.startswith(f"{room}/")),
            allowed,
        )
    assert "transports" in shown["  stores"][1] | shown["  brokers"][1]


def map_line(line: str) -> tuple[str, int, set[str]]:
    part, _, to = line.partition("→")
    name, size = part.rstrip().rsplit(maxsplit=1)
    return name.rstrip(), int(size.replace(",", "")), set(to.replace(",", " ").split())
