"""Three hospitals and a table: is a tumour benign? scikit-learn's breast cancer data, 30 measurements of each of 569
cell samples. A reference laboratory has 24 diagnoses; the hospitals have samples without diagnoses, which never leave
them.

python ops/examples/hospitals.py [ROUNDS]
"""

import sys
from collections import Counter

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import fedil
from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.interface import Dataset, Samples


def cell_samples() -> Dataset:
    """What server and workers open: they import this file, hence the guard at its end."""
    table = load_breast_cancer()
    names = tuple(map(str, table.target_names))
    train, test, train_labels, test_labels = train_test_split(
        table.data, table.target, test_size=0.3, random_state=0, stratify=table.target
    )

    def samples(rows: np.ndarray, labels: np.ndarray) -> Samples:
        return Samples(torch.tensor(rows, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64))

    return Dataset(
        class_names=names,
        input_shape=(table.data.shape[1],),
        views=TensorViews(mean=train.mean(axis=0), std=train.std(axis=0)),
        load_train=lambda: samples(train, train_labels),
        load_test=lambda: samples(test, test_labels),
    )


def main(rounds: int) -> None:
    recipe = fedil.Recipe(
        name="hospitals",
        rounds=rounds,
        data={"name": cell_samples},
        network={"name": "mlp", "width": 32, "norm": "none"},
        split={"labelled": 24, "clients": 9, "partition": "dirichlet", "alpha": 1.0},
        server={"epochs": 5, "pretrain_epochs": 20, "batch_size": 12},
        client={"epochs": 2, "batch_size": 10},
        federation={"clients_per_round": 6, "sites": {"university": 5, "county": 3, "village": 1}},
    )
    run = fedil.simulate(recipe, overwrite=True)

    print("\nhospital     asked  counted  samples")
    asked, counted, samples = Counter[str](), Counter[str](), dict[tuple[str, int], int]()
    table = run.clients
    for site, client, counts, size in zip(
        table["site"], table["client"], table["counts"], table["num_samples"], strict=True
    ):
        asked[site] += 1
        counted[site] += counts
        samples[site, client] = size
    for site in recipe.sites:
        held = sum(size for (owner, _), size in samples.items() if owner == site)
        print(f"{site:12} {asked[site]:5} {counted[site]:8} {held:8}")

    quality = run.evaluate()
    assert run.baseline is not None
    print(f"\nright, of {quality.samples} samples of the test set: {100 * quality.accuracy:.1f} %")
    print(f"from the 24 diagnoses alone: {100 * run.baseline:.1f} %")
    for name, share in zip(quality.class_names, quality.per_class, strict=True):
        print(f"  {name}: {'–' if share is None else f'{100 * share:.1f} % found'}")

    patients = load_breast_cancer().data[:3]
    found = run.predict(patients)
    for label, shares in zip(found.labels, found.probabilities, strict=True):
        print(f"a new sample is {label} ({100 * shares.max():.0f} % sure)")
    print(f"\n{run}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
