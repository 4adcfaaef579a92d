from pathlib import Path

import pytest

from fedil_model.errors import DataError, SettingError
from fedil_model.plugins import call_with_options, load_callable, users_code


@pytest.fixture
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_own_module.py").write_text(
        "NUMBER = 3\ndef double(x, *, times=2):\n    return x * times\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "users_own_module"


def test_a_callable_is_found_by_module_and_name(users_module: str) -> None:
    assert load_callable("data.name", f"{users_module}:double")(4) == 8


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module_xyz:f", "cannot import 'no_such_module_xyz'"),
        ("users_own_module:nothing", "has no 'nothing'"),
        ("users_own_module:NUMBER", "is a int, not a callable"),
        ("users_own_module:", "'module:callable'"),
        (":double", "'module:callable'"),
    ],
)
@pytest.mark.usefixtures("users_module")
def test_what_cannot_be_loaded_is_named(path: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_callable("data.name", path)


def test_a_module_that_cannot_import_something_says_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_broken_module.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingError, match="a_package_that_is_missing"):
        load_callable("data.name", "users_broken_module:f")


def test_a_misspelt_option_is_a_setting_error_and_the_callable_does_not_run(users_module: str) -> None:
    double = load_callable("data.name", f"{users_module}:double")
    assert call_with_options("data.options", double, 4, options={"times": 3}) == 12
    with pytest.raises(SettingError, match=r"data\.options.*tiems"):
        call_with_options("data.options", double, 4, options={"tiems": 3})


def test_a_type_error_of_the_users_own_code_is_not_blamed_on_the_options() -> None:
    def broken() -> None:
        raise TypeError("my own")

    with pytest.raises(TypeError, match="my own"):
        call_with_options("data.options", broken, options={})


BROKEN = """
import os
def helper():
    raise ValueError("of\\nno use")
def raises():
    return helper()
def asks_for_a_file():
    return os.stat("no-such-file")
"""


def fails(module: str, content: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / f"{module}.py").write_text(content)
    monkeypatch.syspath_prepend(str(folder))
    path = f"{module}:{name}"
    with pytest.raises(SettingError) as caught, users_code("network.name", path):
        load_callable("network.name", path)()
    assert caught.value.__cause__ is not None  # the whole traceback stays within reach
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "error", "line"),
    [("raises", "ValueError: of no use", 4), ("asks_for_a_file", "FileNotFoundError: [Errno 2]", 8)],
)
def test_what_a_users_code_raises_is_told_with_its_place(
    name: str, error: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"users_module_{name}"  # Python remembers what it has imported
    said = fails(module, BROKEN, name, tmp_path, monkeypatch)
    assert said.startswith(f"network.name={module}:{name}: {error}")
    assert said.endswith(f"({tmp_path / module}.py:{line})")
    assert "\n" not in said


def test_a_syntax_error_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = fails("users_unfinished_module", "x = 1\ndef f(:\n", "f", tmp_path, monkeypatch)
    file = tmp_path / "users_unfinished_module.py"
    assert said == f"network.name=users_unfinished_module:f: SyntaxError: invalid syntax ({file}:2)"


def test_a_missing_import_of_a_users_module_is_not_blamed_on_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = fails("users_needy_module", "import missing_package_xyz\n", "f", tmp_path, monkeypatch)
    assert f"No module named 'missing_package_xyz' ({tmp_path / 'users_needy_module.py'}:1)" in said
    assert "PYTHONPATH" not in said


def test_errors_of_ours_stay_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), users_code("network.name", "mlp"):
        raise ZeroDivisionError
    with pytest.raises(DataError, match=r"^mine$"), users_code("data.name", "users:data"):
        raise DataError("mine")
