"""`python -m tests.benchmarks._echo_worker …`: `python -m client_worker …` with the echo for a method."""

import sys

from client_worker.__main__ import main
from tests.benchmarks._echo_method import install

if __name__ == "__main__":
    install()
    sys.exit(main())
