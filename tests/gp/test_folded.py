"""The posterior as a covariance of the candidates, against the one that keeps rows."""

import pytest
import torch
from botorch_delay.gp.folded import FoldedPosterior
from cases import KERNELS, generator, scattered, se

from botorch_delay.gp import averages
from botorch_delay.gp import folded as module
from botorch_delay.gp.candidates import CandidatePosterior
from botorch_delay.gp.surrogate import Surrogate

X = scattered(50, seed=2)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("noise_var", [1e-1, 1e-3])
def test_it_equals_rows_through_every_kind_of_change(name, noise_var, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 7)
    kernel, g = KERNELS[name](), generator(4)
    rows = CandidatePosterior(kernel, X)
    rows.update({k: (X[k], float(k % 5), noise_var) for k in (3, 9, 30)})
    folded = FoldedPosterior(kernel, X, rows)
    for step in range(120):
        key = int(torch.randint(50, (), generator=g))
        value = torch.randn((), generator=g, dtype=torch.double).item()
        noise = noise_var * (1.0 + step % 3)
        change = None if step % 6 == 5 else (X[key], value, noise)
        rows.update({key: change})
        folded.update({key: change})
        assert (key in folded) == (key in rows)
        torch.testing.assert_close(folded.mean, rows.mean, rtol=0.0, atol=1e-8 / noise_var)
        torch.testing.assert_close(folded.variance, rows.variance, rtol=0.0, atol=1e-9 / noise_var)
    assert sorted(folded.keys) == sorted(rows.keys)
    places = [rows.keys.index(key) for key in folded.keys]
    torch.testing.assert_close(folded.noise_var, rows.noise_var[places])
    residual = torch.randn(len(rows), generator=g, dtype=torch.double)
    torch.testing.assert_close(
        folded.correction(residual[places]), rows.correction(residual), rtol=0.0, atol=1e-6
    )


def test_averages_fold_where_many_of_few_candidates_were_asked_and_back(monkeypatch):
    surrogate = Surrogate.fixed(se(), 0.01, X)
    found = averages.Averages(surrogate, X)
    plain = averages.Averages(surrogate, X)
    monkeypatch.setattr(averages, "MAX_CANDIDATES", 50)
    for source in range(20):
        found.put(source % 9, source, X[source % 9], float(source), None)
        found.flush()
    assert isinstance(found.posterior, FoldedPosterior)
    elsewhere = torch.tensor([5.0, 5.0], dtype=torch.double)
    found.put(-1, 20, elsewhere, 1.0, None)
    found.put(2, 21, X[2], 3.0, None)
    found.flush()
    assert isinstance(found.posterior, CandidatePosterior)
    monkeypatch.setattr(averages, "MAX_CANDIDATES", 0)
    for source in range(20):
        plain.put(source % 9, source, X[source % 9], float(source), None)
    plain.put(-1, 20, elsewhere, 1.0, None)
    plain.put(2, 21, X[2], 3.0, None)
    plain.flush()
    torch.testing.assert_close(found.posterior.mean, plain.posterior.mean)
    torch.testing.assert_close(found.posterior.variance, plain.posterior.variance)


def test_the_mean_is_made_anew_with_every_block(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 12)
    rows = CandidatePosterior(se(), X[:4])
    rows.update({0: (X[0], 0.1, 1e-2)})
    folded, made = FoldedPosterior(se(), X[:4], rows), []
    times = FoldedPosterior._times

    def counted(self, weights):
        made.append(1)
        return times(self, weights)

    monkeypatch.setattr(FoldedPosterior, "_times", counted)
    for step in range(12 * 10):  # precisions that only grow: nothing else makes the mean anew
        folded.update({step % 4: (X[step % 4], 0.1, 1e-2 / (2 + step))})
    assert len(made) == 10
