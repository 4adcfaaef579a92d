"""Ways to spread unlabelled samples over clients, by name.

Adding one: one file with a function `(labels, num_clients, settings, rng)` that returns, for each client, the
positions in `labels` that it holds (no position twice), one line here, and its name in `SplitSettings.partition`.
"""

from collections.abc import Callable

import numpy as np

from fedil_model.data.partitions.classes import partition_classes
from fedil_model.data.partitions.dirichlet import partition_dirichlet
from fedil_model.data.partitions.fedmatch import partition_batch_iid, partition_batch_noniid
from fedil_model.data.partitions.iid import partition_iid
from fedil_model.settings import SplitSettings

Partition = Callable[[np.ndarray, int, SplitSettings, np.random.Generator], list[np.ndarray]]

PARTITIONS: dict[str, Partition] = {
    "iid": partition_iid,
    "classes": partition_classes,
    "dirichlet": partition_dirichlet,
    "batch_iid": partition_batch_iid,
    "batch_noniid": partition_batch_noniid,
}
