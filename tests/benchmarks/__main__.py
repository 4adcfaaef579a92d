"""NAME is a module of this package; its run() returns at least name, ratio, bar and ok: the last line, and
ops/results/NAME.json, which also has what is under "details". Options such as `--seeds 0-2` are arguments of that
function, as text."""

import importlib
import inspect
import json
import pkgutil
import sys

from tests import benchmarks
from tests.benchmarks._results import write_results


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))


def main(arguments: list[str]) -> int:
    if not arguments:
        print("\n".join(names()))
        return 0
    name, *options = arguments
    if name not in names():
        print(f"no benchmark {name!r}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    run = importlib.import_module(f"tests.benchmarks.{name}").run
    keys, values = [option.removeprefix("--") for option in options[::2]], options[1::2]
    known = list(inspect.signature(run).parameters)
    if len(keys) != len(values) or not set(keys) <= set(known):
        takes = ", ".join(f"--{key} VALUE" for key in known) or "no options"
        print(f"benchmark {name} takes {takes}", file=sys.stderr)
        return 2
    result = run(**dict(zip(keys, values, strict=True)))
    details = result.pop("details", {})
    write_results(name, {**result, **details})
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
