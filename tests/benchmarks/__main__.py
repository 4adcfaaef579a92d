"""NAME is a module of this package; its run() returns at least name, ratio, bar and ok: the last line."""

import importlib
import json
import pkgutil
import sys

from tests import benchmarks


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))


def main(arguments: list[str]) -> int:
    if not arguments:
        print("\n".join(names()))
        return 0
    if len(arguments) > 1 or arguments[0] not in names():
        print(f"no benchmark {' '.join(arguments)!r}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    result = importlib.import_module(f"tests.benchmarks.{arguments[0]}").run()
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
