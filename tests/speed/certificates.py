"""Certificates compared with the regret of GP-BUCB, also for norm bounds that are too large.

``PYTHONPATH=.:tests python -m speed.certificates runs.jsonl --seeds 20`` plays what is not in the
file yet, seed by seed, and writes ``runs.md``, the table; it may be stopped at any time. The norm
bound is the norm of f times 1, 1.5 and 2; asks are those of :class:`CertifyingUCB`, which are the
ones of ``BPEDelayOptimizer.guaranteed`` as long as its budget is not used up. A certificate after
fewer asks is that of the same run, which knows no horizon.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gpytorch.kernels import MaternKernel

from botorch_delay.benchmarks.bench import Array, bootstrap, markdown_table
from botorch_delay.benchmarks.functions import paper_problem
from botorch_delay.benchmarks.problems import FiniteProblem
from botorch_delay.benchmarks.simulator import DELAYS, simulate
from botorch_delay.optimizers.acquisition_optimizer import AcquisitionOptimizer
from botorch_delay.optimizers.certifying import CertifyingUCB
from botorch_delay.optimizers.rules import UCB

STEPS, LOOKS = 1000, (200, 500, 1000)
NORMS = (1.0, 1.5, 2.0)
DELTA = 0.05
BETA = 6.0  # of GP-BUCB
PROBLEMS = {
    "l = 0.8": partial(paper_problem, 0.8),
    "l = 1.0": partial(paper_problem, 1.0),
    "l = 0.8, noise 0.2": partial(paper_problem, 0.8, noise_std=0.2),
    "l = 0.8, Matern 3/2": partial(paper_problem, 0.8, kernel=partial(MaternKernel, nu=1.5)),
}
DELAYS_OF = {
    **dict.fromkeys(("l = 0.8", "l = 1.0"), ("none", "poisson-50")),
    **dict.fromkeys(("l = 0.8, noise 0.2", "l = 0.8, Matern 3/2"), ("poisson-50",)),
}
Row = dict[str, Any]


def _play(problem: FiniteProblem, delay: str, seed: int, norm: float | None) -> Row:
    """One run with a norm bound, or GP-BUCB without: regret, certificates and gaps at the looks."""
    assert problem.norm is not None
    law = DELAYS[delay].law
    assert law is not None
    known = (norm or 1.0) * problem.norm, problem.noise_std
    rule = UCB(BETA) if norm is None else CertifyingUCB(*known, DELTA)
    opt = AcquisitionOptimizer(
        problem.domain, horizon=STEPS, **problem.model_options, rule=rule, seed=seed
    )
    start = time.process_time()
    regret = simulate(opt, problem, law, STEPS, seed).regret
    certified = [opt.certify(*known, DELTA, asks=asks).regret for asks in LOOKS]
    return {
        "regret": [float(regret[asks - 1]) for asks in LOOKS],
        "certified": certified,
        "gap": opt.certify(*known, DELTA).gap,
        "seconds": time.process_time() - start,
    }


def cells(seeds: int, few: int) -> Iterator[tuple[int, str, str, float | None]]:
    """Every run, seed by seed; only the first ``few`` seeds beyond the paper's own problems."""
    for seed in range(seeds):
        for name, delays in DELAYS_OF.items():
            for delay in delays if seed < few or len(delays) > 1 else ():
                for norm in (None, *NORMS):
                    yield seed, name, delay, norm


def run(path: Path, seeds: int, few: int) -> list[Row]:
    """Play the runs that the file lacks and append them; returns all runs."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {tuple(row["cell"]) for row in rows}
    with path.open("a") as file:
        for cell in cells(seeds, few):
            if cell in done:
                continue
            seed, name, delay, norm = cell
            row = {"cell": cell, **_play(PROBLEMS[name](seed=seed), delay, seed, norm)}
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    return rows


def table(rows: list[Row]) -> list[str]:
    """By problem, delay, asks and norm: means over seeds as ratios to GP-BUCB's regret."""
    groups: dict[tuple[str, str, float | None], dict[int, Row]] = {}
    for row in rows:
        seed, name, delay, norm = row["cell"]
        groups.setdefault((name, delay, norm), {})[seed] = row
    lines = []
    for name, delays in DELAYS_OF.items():
        for delay in delays:
            runs = {norm: groups.get((name, delay, norm), {}) for norm in (None, *NORMS)}
            seeds = sorted(set.intersection(*map(set, runs.values())))
            label = f"{name}, delay {delay.rpartition('-')[2]}"
            for place, asks in enumerate(LOOKS if seeds else ()):
                lines.append([label, asks, len(seeds), *_entries(runs, seeds, place)])
    header = ["problem", "T", "seeds", "GP-BUCB's regret"]
    for norm in NORMS:
        header += [f"certificate, {norm:g} C", f"regret, {norm:g} C"]
    return markdown_table([*header, "GP-BUCB's own certificate, C"], lines)


def _entries(runs: dict[float | None, dict[int, Row]], seeds: list[int], place: int) -> list[str]:
    regret, certified = (
        {norm: np.array([group[s][key][place] for s in seeds]) for norm, group in runs.items()}
        for key in ("regret", "certified")
    )
    base = regret[None]
    entries = [f"{base.mean():.0f}"]
    for norm in NORMS:
        exceeded = int((regret[norm] > certified[norm]).sum())
        entries += [_ratio(certified[norm], base), _ratio(regret[norm], base)]
        entries[-1] += f" ({exceeded} exceeded)" if exceeded else ""
    return [*entries, f"{certified[None].mean() / base.mean():.2f}"]


def _ratio(values: Array, base: Array) -> str:
    """Ratio of means with its interval over seeds, paired."""
    ratio = bootstrap(values, base)
    return f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="JSON lines, one per run")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--few", type=int, default=5, help="seeds beyond the paper's problems")
    given = parser.parse_args()
    lines = table(run(given.file, given.seeds, given.few))
    given.file.with_suffix(".md").write_text("\n".join([*lines, ""]))
