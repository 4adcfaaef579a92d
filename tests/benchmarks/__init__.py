"""Speed and memory against a bar, both sides measured in the same run: `python -m tests.benchmarks NAME`."""
