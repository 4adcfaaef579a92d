"""The parsers of the programs that manifests start."""

import argparse

import client_worker.options
import server_worker.options
from ops.cli.main import make_parser


def parse(args: list[str]) -> argparse.Namespace:
    """`args` follow `python -m`. Ends the process for arguments that the program does not take."""
    program, *words = args
    if program == "ops.cli":
        return make_parser().parse_args(words)
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    if program == "server_worker":
        parser.add_argument("--recipe", required=True)
        server_worker.options.add_override_argument(parser)
        server_worker.options.add_arguments(parser)
    else:
        assert program == "client_worker"
        client_worker.options.add_arguments(parser)
    return parser.parse_args(words)
