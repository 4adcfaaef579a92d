"""Where `fedil` begins. Loading the command line takes a moment in which Ctrl-C may come, too."""

import signal


def main() -> int:
    try:
        from ops.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
