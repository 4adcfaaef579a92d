"""The `fedil` command line: which command, and how its errors reach a person.

Nothing heavy is imported here (torch alone costs two seconds): a command loads what it needs when it runs.
"""

import argparse
import difflib
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from broker_config.process.addresses import read_account_file
from broker_config.process.version import software_version
from broker_config.protocol.errors import FedILError, UsageError
from fedil_model.errors import LearningError, SettingError
from ops.cli.examples import epilog

COMMANDS = {
    "simulate": "train on this machine (default recipe: digits, which needs no download)",
    "evaluate": "test accuracy of a run's model, per class, with its confusions",
    "predict": "label a folder of images with a run's model",
    "export": "write a run's model as safetensors, TorchScript or ONNX",
    "report": "write a run, or the comparison of several, as one HTML file",
    "compare": "run several methods on one recipe and compare them",
    "sweep": "run a recipe with several values of its settings and compare them",
    "recipes": "list the built-in recipes, or show one",
    "runs": "list the runs in a folder",
    "cluster": "train on this machine over RabbitMQ and Redis, as a deployment does",
    "server": "lead a run, for workers that connect to the same broker",
    "worker": "train one site's clients, for a server elsewhere",
    "shards": "write the unlabelled samples of one site's clients, for its workers",
    "status": "show runs, sites and workers, live",
    "ledger": "look at the ledgers of a run's clients",
    "broker": "set up RabbitMQ and Redis (queues, users, permissions), check them, list and retire runs",
    "doctor": "find out what is wrong with this machine and the brokers",
    "plan": "bytes, memory, disk and time that a federation of any size needs, and the limit that comes first",
    "credentials": "make certificates for mutual TLS between brokers, server and sites",
    "monitoring": "write Prometheus' and Grafana's configuration, with your addresses",
    "completion": "print the completion of this command line for a shell",
}
"""Modules in ops/cli/commands, and what the help says of them"""

FAILED, MISUSED, INTERRUPTED = 1, 2, 128 + signal.SIGINT


class HelpFormatter(argparse.HelpFormatter):
    """Breaks paragraphs into lines as argparse does, and leaves examples as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        paragraphs = (
            super(HelpFormatter, self)._fill_text(part, width, indent) for part in text.split("\n\n")
        )
        return "\n\n".join(paragraphs)


class Parser(argparse.ArgumentParser):
    """argparse, answering a mistake with one line instead of the whole usage, and with what was meant."""

    def __init__(self, **how: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **how)
        self.epilog = epilog(self.prog)

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"fedil: {message} (see: {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Complains here, where they were not known: argparse would let the topmost parser do it, which can only
        point to its own help."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            near = difflib.get_close_matches(str(value), list(map(str, action.choices)), n=1)
            if near:
                raise argparse.ArgumentError(action, f"invalid choice: {value!r}, did you mean {near[0]}?")
        super()._check_value(action, value)


class Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(f"fedil {software_version()}")
        parser.exit()


def make_parser() -> Parser:
    parser = Parser(
        prog="fedil",
        description="Federated semi-supervised learning: few labels in one place, unlabelled data in many.",
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        command = import_module(f"ops.cli.commands.{name}")
        subparser = subparsers.add_parser(name, help=text, description=command.__doc__)
        subparser.set_defaults(run=getattr(command, "run", None))  # else each of its actions has one
        command.add_arguments(subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # θ′ must not end a run on a terminal without Unicode
    sys.path.append(os.getcwd())  # where a person keeps the `module:callable` that a recipe names
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        read_account_file(os.environ)  # before the parser, whose defaults are in the environment
    except FedILError as error:
        complain(explain(error), error)
        return MISUSED
    args = make_parser().parse_args(words, argparse.Namespace(words=words))
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        complain("interrupted", interrupt)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has left. Python would complain once more at exit if stdout stayed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (FedILError, LearningError, OSError) as error:
        if os.environ.get("FEDIL_DEBUG"):
            raise
        complain(explain(error), error)
        # Other arguments or settings would put a misuse right.
        return MISUSED if isinstance(error, SettingError | UsageError) else FAILED


def explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def complain(text: str, error: BaseException) -> None:
    for line in [*text.splitlines(), *getattr(error, "__notes__", ())]:
        print(f"fedil: {line}", file=sys.stderr)
