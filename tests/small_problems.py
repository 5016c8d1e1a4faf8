"""Two small problems of the benchmark, each with a category: a grid and a box."""

import torch

from botorch_delay.benchmarks.problems import BoxProblem, FiniteProblem
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import FiniteDomain


def arms():
    """A full grid with a category and a learned kernel."""
    axes = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 10.0, 100.0]), torch.tensor([0.0, 1.0])
    points = torch.cartesian_prod(*axes).double()
    domain = FiniteDomain(points, names=["a", "b", "c"], log_dims=[1], cat_dims=[2])
    return FiniteProblem(domain, points[:, 0] - points[:, 1].log() + points[:, 2], 0.1)


def box():
    domain = BoxDomain(
        torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 9.0, 2.0, 3.0]]).double(),
        discrete_dims={1: [1, 3, 9]},
        cat_dims={2: [0, 1, 2]},
        names=["x", "n", "kind", "y"],
    )
    return BoxProblem(domain, lambda X: -(X - 0.5).square().sum(dim=1), 0.0, 0.1)
