"""Clusters of equal size, and the moving average of weights."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedil_model.training.clustering import SHARPNESS, cluster_evenly, fit_centroids, sinkhorn, unit
from fedil_model.training.flat_model import FlatModel


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bunches(per_bunch: int, num: int = 4, noise: float = 0.1) -> Tensor:
    """Unit vectors around the first axes, one bunch after the other."""
    points = torch.eye(8)[:num].repeat_interleave(per_bunch, 0)
    return unit(points + noise * torch.randn(points.shape, generator=seeded(5)))


def test_sinkhorn_is_alternating_scaling_of_columns_and_rows() -> None:
    cosines_NK = torch.rand(6, 3, generator=seeded()) * 2 - 1
    expected = np.exp(SHARPNESS * cosines_NK.double().numpy())
    for _ in range(10):
        expected /= expected.sum(1, keepdims=True)
        expected /= expected.sum(0, keepdims=True)
    expected /= expected.sum(1, keepdims=True)
    assert sinkhorn(cosines_NK, 10).double().numpy() == pytest.approx(expected, abs=1e-5)


def test_sinkhorn_gives_all_clusters_the_same_total_though_most_points_are_nearest_to_one() -> None:
    cosines_NK = torch.rand(40, 4, generator=seeded())
    cosines_NK[:, 0] += 0.3
    shares_NK = sinkhorn(cosines_NK.clamp(max=1.0), 500, 1e-2)
    assert shares_NK.sum(1).tolist() == pytest.approx([1.0] * 40)
    assert shares_NK.sum(0).tolist() == pytest.approx([10.0] * 4, rel=0.011)
    assert cosines_NK.argmax(1).bincount(minlength=4)[0] > 20


def test_sinkhorn_ends_once_the_totals_agree() -> None:
    even_NK = torch.eye(4).repeat(3, 1)
    assert torch.equal(sinkhorn(even_NK, 100, 1e-2), (SHARPNESS * even_NK).softmax(1))


def test_sinkhorn_goes_on_from_earlier_factors() -> None:
    cosines_NK, factors_K = torch.rand(40, 4, generator=seeded()), torch.ones(4)
    balanced_NK = sinkhorn(cosines_NK, 500, 1e-3, factors_K)
    assert torch.equal(sinkhorn(cosines_NK, 0, 0.0, factors_K), balanced_NK)


def test_clusters_of_a_client_find_the_bunches() -> None:
    centroids_KF = cluster_evenly(bunches(16), 4, seeded())
    assert torch.linalg.vector_norm(centroids_KF, dim=1).tolist() == pytest.approx([1.0] * 4)
    cosines = centroids_KF @ torch.eye(8)[:4].T
    assert sorted(cosines.argmax(1).tolist()) == [0, 1, 2, 3]
    assert float(cosines.max(1).values.min()) > 0.9


@pytest.mark.parametrize("num_points", [1, 3, 5])
def test_fewer_points_than_clusters_are_centroids_themselves(num_points: int) -> None:
    points_NF = bunches(2, num=4)[:num_points]
    centroids_KF = cluster_evenly(points_NF, 8, seeded())
    assert centroids_KF.shape == (8, 8)
    assert torch.linalg.vector_norm(centroids_KF, dim=1).tolist() == pytest.approx([1.0] * 8)


def test_the_servers_centroids_move_to_the_bunches_and_agree_with_them() -> None:
    points_NF = bunches(8)
    before_KF = unit(torch.eye(8)[:4] + 0.8 * torch.randn(4, 8, generator=seeded(3)))
    after_KF, agreement = fit_centroids(points_NF, before_KF, 0.1, 500)
    _, first = fit_centroids(points_NF, before_KF, 0.1, 1)
    assert agreement > max(first, 0.9)
    assert torch.linalg.vector_norm(after_KF, dim=1).tolist() == pytest.approx([1.0] * 4)
    assert sorted((after_KF @ torch.eye(8)[:4].T).argmax(1).tolist()) == [0, 1, 2, 3]
    assert not after_KF.requires_grad


def test_one_step_on_centroids_climbs_the_mean_cosine_of_shares_and_softmax() -> None:
    points_NF, before_KF = bunches(4), unit(torch.randn(3, 8, generator=seeded(3)))
    moved_KF, agreement = fit_centroids(points_NF, before_KF, 0.1, 1)
    centroids_KF = before_KF.double().requires_grad_()
    cosines_NK = points_NF.double() @ centroids_KF.T
    shares_NK = sinkhorn(cosines_NK.detach(), 100, 1e-2)
    value = functional.cosine_similarity(shares_NK, (cosines_NK / 0.1).softmax(1)).mean()
    (gradient_KF,) = torch.autograd.grad(value, centroids_KF)
    assert agreement == pytest.approx(value.item(), rel=1e-5)
    expected_KF = unit(centroids_KF.detach() * (1 - 0.01 * 1e-4) + 0.01 * gradient_KF)
    assert moved_KF.double().numpy() == pytest.approx(expected_KF.numpy(), abs=1e-6)


def test_fitting_stops_when_it_is_told_to() -> None:
    calls = itertools.count()

    def stop_at_third() -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_centroids(bunches(2), bunches(1), 0.1, 500, stop_at_third)
    assert next(calls) == 3


def test_a_moving_average_follows_the_parameters_and_leaves_the_model_alone() -> None:
    average, model = FlatModel(nn.Linear(3, 2)), FlatModel(nn.Linear(3, 2))
    before, other = average.params.clone(), model.params.clone()
    average.move_towards(model, 0.1)
    # Where both nearly cancel, the last bits of a float32 are a large share.
    wanted = 0.9 * before + 0.1 * other
    assert average.params.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    assert torch.equal(model.params, other)
