"""`python -m ops.reference`: writes the pages of ops/docs that come from the code."""

from ops.reference.pages import DOCS, PAGES


def main() -> None:
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
