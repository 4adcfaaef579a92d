"""Clusters of equal size, by Sinkhorn's scalings of a matrix of similarities (Orchestra, arXiv 2205.11506).

N points, K clusters, F features. Points and centroids have unit length: their product is their cosine.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

SHARPNESS = 25.0
"""Of the cosines in Sinkhorn's matrix"""
LOCAL_ITERATIONS, LOCAL_SCALINGS = 5, 10
GLOBAL_SCALINGS, GLOBAL_TOLERANCE = 100, 1e-2
GLOBAL_LR, GLOBAL_MOMENTUM, GLOBAL_DECAY = 0.01, 0.9, 1e-4


def unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=-1)


def sinkhorn(
    cosines_NK: Tensor, scalings: int, tolerance: float = 0.0, factors_K: Tensor | None = None
) -> Tensor:
    """Shares of each point in the clusters; all clusters get about the same total. Ends before `scalings` once no
    cluster's total differs from the others' by more than `tolerance` of it. `factors_K`: where the scalings of clusters
    begin, and where they are left: similar cosines need few more."""
    num_points, num_clusters = cosines_NK.shape
    likeness_NK = (SHARPNESS * cosines_NK).softmax(1)
    factors_K = likeness_NK.new_ones(num_clusters) if factors_K is None else factors_K
    shares_NK = functional.normalize(likeness_NK * factors_K, p=1.0, dim=1)
    for _ in range(scalings):
        totals_K = shares_NK.sum(0).mul_(num_clusters / num_points)
        if tolerance and float((totals_K - 1).abs().max()) <= tolerance:
            break
        factors_K.div_(totals_K.clamp_(min=1e-12))
        factors_K.div_(factors_K.mean())
        shares_NK = functional.normalize(likeness_NK * factors_K, p=1.0, dim=1)
    return shares_NK


def cluster_evenly(points_NF: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Centroids of k-means with balanced clusters. An empty cluster starts again from a random point."""
    num_points = len(points_NF)
    order_N = torch.randperm(num_points, generator=generator).to(points_NF.device)
    centroids_KF = points_NF[order_N.repeat(-(-num_clusters // num_points))[:num_clusters]]
    for _ in range(LOCAL_ITERATIONS):
        nearest_N = sinkhorn(points_NF @ centroids_KF.T, LOCAL_SCALINGS).argmax(1)
        member_NK = functional.one_hot(nearest_N, num_clusters).to(points_NF.dtype)
        spare_K = torch.randint(num_points, (num_clusters,), generator=generator).to(points_NF.device)
        is_empty_K1 = (member_NK.sum(0) == 0)[:, None]
        centroids_KF = unit(torch.where(is_empty_K1, points_NF[spare_K], member_NK.T @ points_NF))
    return centroids_KF


def fit_centroids(
    points_NF: Tensor,
    centroids_KF: Tensor,
    temperature: float,
    steps: int,
    check_stop: Callable[[], None] = lambda: None,
) -> tuple[Tensor, float]:
    """The centroids after SGD on the cosine between the points' balanced shares and their softmax, and its last mean:
    1 where every cluster gets the same number of points that are near to it and to no other."""
    centroids_KF = centroids_KF.clone().requires_grad_()
    optimiser = torch.optim.SGD([centroids_KF], GLOBAL_LR, GLOBAL_MOMENTUM, weight_decay=GLOBAL_DECAY)
    agreement, factors_K = centroids_KF.new_zeros(()), centroids_KF.new_ones(len(centroids_KF))
    for _ in range(steps):
        check_stop()
        cosines_NK = points_NF @ centroids_KF.T
        shares_NK = sinkhorn(cosines_NK.detach(), GLOBAL_SCALINGS, GLOBAL_TOLERANCE, factors_K)
        likeness_NK = (cosines_NK / temperature).softmax(1)
        agreement = functional.cosine_similarity(shares_NK, likeness_NK).mean()
        optimiser.zero_grad()
        (-agreement).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        with torch.no_grad():
            centroids_KF.copy_(unit(centroids_KF))
    return centroids_KF.detach(), float(agreement.detach())
