"""Networks by name. `build_network` is the only way the engine makes one: same seed, same bits."""

from fedil_model.networks.build import NETWORKS, build_network
from fedil_model.networks.interface import features_of
from fedil_model.networks.normalisation import refresh_statistics

__all__ = ["NETWORKS", "build_network", "features_of", "refresh_statistics"]
