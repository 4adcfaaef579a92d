from pathlib import Path

import pytest

from fedil_model.errors import SettingError
from fedil_model.plugins import call_with_options, load_callable


@pytest.fixture
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_own_module.py").write_text(
        "NUMBER = 3\ndef double(x, *, times=2):\n    return x * times\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "users_own_module"


def test_a_callable_is_found_by_module_and_name(users_module: str) -> None:
    assert load_callable(f"{users_module}:double")(4) == 8


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
        load_callable(path)


def test_a_module_that_cannot_import_something_says_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_broken_module.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingError, match="a_package_that_is_missing"):
        load_callable("users_broken_module:f")


def test_a_misspelt_option_is_a_setting_error_and_the_callable_does_not_run(users_module: str) -> None:
    double = load_callable(f"{users_module}:double")
    assert call_with_options("data.options", double, 4, options={"times": 3}) == 12
    with pytest.raises(SettingError, match=r"data\.options.*tiems"):
        call_with_options("data.options", double, 4, options={"tiems": 3})


def test_a_type_error_of_the_users_own_code_is_not_blamed_on_the_options() -> None:
    def broken() -> None:
        raise TypeError("my own")

    with pytest.raises(TypeError, match="my own"):
        call_with_options("data.options", broken, options={})
