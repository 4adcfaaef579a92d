"""Reads sizes and imports from the source, without importing it. As a program it prints them as a map."""

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("ops", "server_worker", "client_worker", "broker_config", "fedil_model")
_NO_CODE = ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")
_TYPING_ONLY = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@dataclass(frozen=True)
class Import:
    name: str
    """Dotted, as absolute as in the source"""
    line: int
    at_module_level: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


def sources() -> list[tuple[str, str]]:
    """Path, relative to the repository, and text of every module."""
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in files]


def code_lines(source: str) -> int:
    """Without blank lines and comments"""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = (token for token in tokens if tokenize.tok_name[token.type] not in _NO_CODE)
    return len({line for token in code for line in range(token.start[0], token.end[0] + 1)})


@cache
def imports_of(source: str, path: str) -> tuple[Import, ...]:
    return tuple(_imports(ast.parse(source), path, at_module_level=True))


def _imports(node: ast.AST, path: str, at_module_level: bool) -> Iterator[Import]:
    for name in _imported_names(node, path):
        yield Import(name, getattr(node, "lineno", 0), at_module_level)
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for field, value in ast.iter_fields(node):
        typing_only = field == "body" and isinstance(node, ast.If) and ast.unparse(node.test) in _TYPING_ONLY
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _imports(child, path, at_module_level and not function and not typing_only)


def _imported_names(node: ast.AST, path: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = path.split("/")[: -node.level] if node.level else []
        return [".".join([*package, *([node.module] if node.module else [])])]
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if called in {"importlib.import_module", "import_module", "__import__"} and isinstance(node, ast.Call):
        return [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return []


def source_map() -> Iterator[str]:
    """Rooms with the rooms that they import; below each its folders with the folders of the room that they import."""
    sizes, arrows = Counter[tuple[str, ...]](), defaultdict[tuple[str, ...], set[str]](set)
    for path, source in sources():
        room, folder = _place(path.split("/"))
        sizes.update({(room,): code_lines(source), (room, folder): code_lines(source)})
        for found in imports_of(source, path):
            to_room, to_folder = _place(found.name.split("."))
            if to_room in ROOMS and to_room != room:
                arrows[room,].add(to_room)
            elif to_room == room and to_folder != folder:
                arrows[room, folder].add(to_folder)
    for place in sorted(+sizes, key=lambda place: (ROOMS.index(place[0]), place)):
        name = "  " + (place[1] or "(files)") if len(place) > 1 else place[0]
        to = ", ".join(sorted(arrows[place] - {""}))
        yield f"{name:<18}{sizes[place]:>7,}{'  → ' if to else ''}{to}"


def _place(parts: list[str]) -> tuple[str, str]:
    """Room and folder; no folder for modules directly in the room."""
    folder = parts[1] if len(parts) > 1 and (ROOT / parts[0] / parts[1]).is_dir() else ""
    return parts[0], folder


if __name__ == "__main__":
    print("\n".join(source_map()))
