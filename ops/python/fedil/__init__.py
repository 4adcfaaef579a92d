"""FedIL from Python: simulate a federation, look at a run, use its model.

    import fedil

    run = fedil.simulate("digits", rounds=10, client__lr=0.05)
    run.history["accuracy"]          # a dict of columns, ready for pandas.DataFrame(run.history)
    run.evaluate().per_class
    run.predict(images).labels
    run.model()(images)              # an nn.Module: raw samples in, logits out

Settings are those of a recipe, by keyword: two underscores stand for the dot, tables are dicts, and a dotted key works
as **{"client.lr": 0.05}. Workers are programs of their own: no `if __name__ == "__main__"` is needed for them, and
notebooks are fine.
"""

from broker_config.process.version import software_version as _software_version
from fedil.recipes import Recipe
from fedil.run import Predictions, Run, load_run
from fedil.simulation import Stop, simulate

__all__ = ["Predictions", "Recipe", "Run", "Stop", "load_run", "simulate"]
__version__ = _software_version()
