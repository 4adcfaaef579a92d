"""Which room may import which, and where each vendor is known; read from the source, without importing it."""

import ast
import io
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT: dict[str, set[str]] = {
    "fedil_model": set(),
    "broker_config": set(),
    "server_worker": {"fedil_model", "broker_config"},
    "client_worker": {"fedil_model", "broker_config"},
    "ops": {"fedil_model", "broker_config", "server_worker", "client_worker"},
}

KNOWN_ONLY_IN = {
    "msgpack": ("broker_config/protocol/wire.py",),
    "pika": ("broker_config/transports/rabbitmq/*.py",),
    "redis": ("broker_config/stores/redis/*.py",),
    "prometheus_client": ("*/metrics.py",),
}

BYTES_THAT_RUN_CODE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
LONGEST_FILE = 350
UNTELLING_NAMES = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}


@dataclass(frozen=True)
class Import:
    name: str
    """Dotted, as absolute as the source says it."""
    line: int
    at_module_level: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


@cache
def imports_of(source: str, path: str) -> tuple[Import, ...]:
    return tuple(walk_imports(ast.parse(source), path))


def walk_imports(tree: ast.Module, path: str) -> Iterator[Import]:
    typing_only = {id(node) for block in type_checking_blocks(tree) for node in ast.walk(block)}
    inside_functions = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        for name in imported_names(node, path):
            runs_on_import = id(node) not in inside_functions and id(node) not in typing_only
            yield Import(name, getattr(node, "lineno", 0), runs_on_import)


def type_checking_blocks(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            yield from node.body


def imported_names(node: ast.AST, path: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = path.split("/")[: -node.level] if node.level else []
        return [".".join([*package, *([node.module] if node.module else [])])]
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if called in {"importlib.import_module", "import_module", "__import__"} and isinstance(node, ast.Call):
        return [
            arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ]
    return []


def undrawn_arrows(source: str, path: str) -> list[str]:
    room = path.partition("/")[0]
    forbidden = (set(MAY_IMPORT) | {"tests"}) - {room} - MAY_IMPORT[room]
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
    blank = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in blank
        for line in range(token.start[0], token.end[0] + 1)
    }
    return [f"{path} has {len(lines)} lines of code"] if len(lines) > LONGEST_FILE else []


def untelling_name(source: str, path: str) -> list[str]:
    return [f"{path}: name it after what it does"] if Path(path).name in UNTELLING_NAMES else []


Rule = Callable[[str, str], list[str]]

# Every rule beside sources that it must catch: one that finds nothing because it looks nowhere misleads.
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


def sources() -> list[tuple[str, str]]:
    files = [path for room in MAY_IMPORT for path in sorted((ROOT / room).rglob("*.py"))]
    return [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in files]
