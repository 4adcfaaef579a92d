"""Run one recipe with several values of its settings, each with each, and compare them."""

import argparse

from ops.cli.commands.compare import add_study_arguments, run_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_arguments(parser, "sweep")


def run(args: argparse.Namespace) -> int:
    from ops.study.cells import parse_seeds, swept_settings

    return run_study(args, "sweep", swept_settings(args.recipe, parse_seeds(args.seeds), args.overrides))
