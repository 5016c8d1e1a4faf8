"""Hundreds of workers in simulation, with the method's own processor time on the clock.

    PYTHONPATH=tests python -m speed.many_workers --workers 16,64 --methods bpe-delay,random \
        --problems hartmann6,mixed8 --out runs.jsonl
    PYTHONPATH=tests python -m speed.many_workers --report runs.jsonl

Every run has ten asks per worker and is a line of the file, written when it ends; what is in the
file already is not played again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from botorch_delay import BoxDomain
from botorch_delay.benchmarks import simulate
from botorch_delay.benchmarks.functions import PROBLEMS, function_on_box
from botorch_delay.benchmarks.methods import METHODS
from botorch_delay.benchmarks.problems import BoxProblem, Problem
from botorch_delay.benchmarks.simulator import Clock
from speed.clocks import PeakMemory, percentile

ASKS_PER_WORKER = 10
COLUMNS = {
    "evaluating": "{:.1%}",
    "asks": "{}",
    "hours": "{:.2f}",
    "regret": "{:.3g}",
    "best": "{:.3g}",
    "ask_ms": "{:.1f}",
    "p99_ms": "{:.0f}",
    "worst_ms": "{:.0f}",
    "tell_ms": "{:.2f}",
    "megabytes": "{:.0f}",
}


def mixed(seed: int = 0) -> BoxProblem:
    """Hartmann6 with two columns more, a whole number from 0 to 9 and one of four categories."""
    six = function_on_box("hartmann6")
    bounds = torch.cat([six.domain.bounds, torch.tensor([[0.0, 0.0], [9.0, 3.0]]).double()], dim=1)
    gains = torch.tensor([0.0, -0.3, -0.1, -0.6], dtype=torch.double)

    def value(X: torch.Tensor) -> torch.Tensor:
        return six.function(X[:, :6]) - 0.01 * (X[:, 6] - 6.0) ** 2 + gains[X[:, 7].long()]

    domain = BoxDomain(bounds, discrete_dims={6: list(range(10))}, cat_dims={7: list(range(4))})
    return BoxProblem(domain, value, six.highest, 0.05)


CHOICES = {
    "hartmann6": PROBLEMS["hartmann6-box"],
    "mixed8": mixed,
    "table": PROBLEMS["hpobench-australian"],
}


def play(
    problem: Problem, method: str, workers: int, seconds: float, seed: int, most: float
) -> dict[str, Any]:
    """One run: how busy the workers were, what was found when, and what the method took."""
    steps = ASKS_PER_WORKER * workers
    clock = Clock(workers=workers, mean=seconds)
    with PeakMemory() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = METHODS[method].make(problem, clock, steps, seed)
        begin = time.process_time()
        found = simulate(
            sampler,
            problem,
            clock,
            steps,
            seed,
            recommend_every=steps,
            own_time=True,
            most_seconds=most,
        )
        processor = time.process_time() - begin
    asks = found.asks
    took = [ask.seconds_ask for ask in asks]
    tells = [ask.seconds_tell for ask in asks if ask.seconds_tell is not None]
    # The times when 10, 20, 50 and 100 % of the evaluations had ended, for the regret curve.
    done = sorted((ask.time + ask.wait, ask.regret) for ask in asks)
    best = list(itertools.accumulate((regret for _, regret in done), min))
    marks = [done[min(len(done) * share // 10, len(done)) - 1][0] for share in (1, 2, 5, 10)]
    return {
        "evaluating": found.utilization(workers),
        "asks": len(asks),
        "planned": steps,
        "hours": asks[-1].time / 3600.0,
        "regret": found.recommendations[-1].regret,
        "best": best[-1],
        "curve": [
            [mark, min(r for (t, _), r in zip(done, best, strict=True) if t <= mark)]
            for mark in marks
        ],
        "repeats": sum(ask.repeat for ask in asks),
        "ask_ms": 1e3 * statistics.fmean(took),
        "p99_ms": 1e3 * percentile(took, 0.99),
        "worst_ms": 1e3 * max(took),
        "tell_ms": 1e3 * statistics.fmean(tells),
        "processor": processor,
        "megabytes": memory.bytes / 1e6,
    }


def report(path: Path) -> str:
    """The runs of a file as a table in Markdown, the least busy ones first."""
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    keys = ("problem", "workers", "seconds", "method")
    lines = ["| " + " | ".join([*keys, *COLUMNS]) + " |", "|---" * (len(keys) + len(COLUMNS)) + "|"]
    for run in sorted(runs, key=lambda run: ([run[key] for key in keys[:3]], run["evaluating"])):
        cells = [str(run[key]) for key in keys]
        cells += [form.format(run[name]) for name, form in COLUMNS.items()]
        cells[-len(COLUMNS) + 1] += "" if run["asks"] == run["planned"] else f" of {run['planned']}"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Play what was chosen, or report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", default="16")
    parser.add_argument("--seconds", default="60", help="mean durations")
    parser.add_argument("--problems", default="hartmann6", help=f"of {', '.join(CHOICES)}")
    parser.add_argument("--methods", default="bpe-delay")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--most", type=float, default=1e4, help="processor seconds of a run")
    parser.add_argument("--out", type=Path, default=Path("many_workers.jsonl"))
    parser.add_argument("--report", type=Path)
    chosen = parser.parse_args()
    if chosen.report:
        print(report(chosen.report))
        return
    torch.set_num_threads(1)
    old = chosen.out.read_text().splitlines() if chosen.out.exists() else []
    known = [json.loads(line) for line in old]
    lists = (chosen.problems, chosen.workers, chosen.seconds, chosen.methods, chosen.seeds)
    for problem, workers, seconds, method, seed in itertools.product(
        *(v.split(",") for v in lists)
    ):
        cell = {"problem": problem, "workers": int(workers), "seconds": float(seconds)}
        cell |= {"method": method, "seed": int(seed)}
        if any(cell.items() <= run.items() for run in known):
            continue
        made = CHOICES[problem](int(seed))
        found = play(made, method, int(workers), float(seconds), int(seed), chosen.most)
        with chosen.out.open("a") as file:
            file.write(json.dumps(cell | found) + "\n")
        print(cell, {name: form.format(found[name]) for name, form in COLUMNS.items()}, flush=True)


if __name__ == "__main__":
    main()
