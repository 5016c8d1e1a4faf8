"""Engines with some workers, of which some are killed; ``many_workers`` plays more of them."""

import importlib.util
import random

import pytest

pytestmark = [pytest.mark.reliability, pytest.mark.filterwarnings("ignore")]


def play(engine, *sizes, **options):
    pytest.importorskip({"dask": "distributed"}.get(engine, engine))
    import many_workers

    name = {"optuna": "optuna_study", "ray": "ray_cluster", "dask": "dask_workers"}[engine]
    state = random.getstate()  # Dask draws from it for names and ports
    try:
        found = getattr(many_workers, name)(*sizes, **options)
    finally:
        random.setstate(state)
    assert found["lost"] == 0
    assert found["twice at once"] == 0
    return found


def test_processes_of_an_optuna_study_some_of_them_killed(figures, tmp_path):
    found = play("optuna", str(tmp_path / "study.log"), 6, 2, 30, 1.0)
    assert found["failed workers"] == 0
    figures("Optuna processes on one journal file", evaluated=found["evaluated"])


def test_dask_workers_one_process_of_them_killed(figures):
    found = play("dask", 4, 16, 0.5, processes=2)
    figures("Dask workers, one process killed", evaluated=found["evaluated"])


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_a_ray_cluster_one_of_its_nodes_killed(figures):
    found = play("ray", 3, 8, 1.0, nodes=2)  # each trial is a process, which first imports Ray
    assert found["known to the searcher"] + found["errors"] == 8
    figures("A Ray cluster, one node killed", evaluated=found["evaluated"])
