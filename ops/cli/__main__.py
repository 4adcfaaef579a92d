"""`python -m ops.cli`: the `fedil` command."""

from ops.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
