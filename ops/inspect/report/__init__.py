"""`fedil report`: one HTML file, without external resources, that shows a run or compares several.

reading.py     a folder → a value; evidence.py and held_labels.py add what needs the model, the data or the ledgers
drawing.py     a figure → inline SVG or a file; curves.py, evidence_plots.py and comparison_plots.py draw
rendering.py   Jinja templates with escaping; page.py, sections/ and comparison_page.py compute their values
comparison.py  several runs: groups that differ only in their seed, and their spread
"""

from broker_config.protocol.errors import FedILError


def check_installed() -> None:
    """Before anything that draws is imported"""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise FedILError(f"a report needs matplotlib ({error}): pip install 'fedil[report]'") from error
