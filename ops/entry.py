"""Where `fedil` begins. Loading the command line takes a moment in which Ctrl-C may come, too."""

import signal


def main() -> int:
    try:
        from ops import cli

        return cli.main()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
