import warnings

import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from cases import scattered

from botorch_delay import BoxDomain, FiniteDomain
from botorch_delay.exceptions import InputError, InputTypeError


def test_a_domain_keeps_its_own_copy():
    points = scattered(10)
    domain = FiniteDomain(points)
    points[0] = 7.0
    assert domain.points.max() < 1.0
    assert len(domain) == 10
    assert domain.dim == 2
    torch.testing.assert_close(domain.bounds[1], domain.points.amax(dim=0))


def test_points_are_found_exactly():
    domain = FiniteDomain(scattered(50))
    X = torch.cat([domain.points[[3, 3, 17]], domain.points[:1] + 1e-15])
    assert domain.find(X).tolist() == [3, 3, 17, -1]
    many = X.repeat(100, 1)[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    apart = torch.cat([domain.find(part) for part in many.split(10)])
    assert domain.find(many).tolist() == apart.tolist()  # sorted, instead of one by one
    assert domain.find(domain.points[:0]).tolist() == []


def test_a_single_point_is_refused_where_several_are_expected():
    box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    for domain in (FiniteDomain(scattered(50)), box):
        for call in (domain.contains, domain.table):
            with pytest.raises(InputError, match=r"shape n x d, a row for each point, got \(2,\)"):
                call(torch.zeros(2, dtype=torch.double))


def test_columns_have_names_and_logarithms():
    domain = FiniteDomain(scattered(5), names=["dose", "heat"], log_dims=[1])
    assert domain.names == ("dose", "heat")
    assert domain.log_dims == (1,)
    assert FiniteDomain(scattered(5)).names == ("x0", "x1")
    for names in (["a"], ["a", "a"], ["a", ""], ["a", 3]):
        with pytest.raises(InputError, match="names"):
            FiniteDomain(scattered(5), names=names)
    for log_dims in ([2], [-1], [0.5]):
        with pytest.raises(InputError, match="log_dims"):
            FiniteDomain(scattered(5), log_dims=log_dims)
    with pytest.raises(InputError, match="column 0"):
        FiniteDomain(scattered(5) - 0.5, log_dims=[0])


def test_a_finite_set_is_discrete_whatever_its_columns_hold(monkeypatch):
    monkeypatch.setattr(FiniteDomain, "allowed", None)  # slow for large sets
    domain = FiniteDomain(scattered(10))
    assert domain.is_discrete
    assert domain.is_countable


def test_fingerprints_tell_domains_apart():
    points = scattered(10)
    domain = FiniteDomain(points)
    assert domain.fingerprint() == FiniteDomain(points.clone()).fingerprint()
    assert domain.fingerprint() != FiniteDomain(points.flip(0)).fingerprint()
    assert domain.fingerprint() != FiniteDomain(points[:9]).fingerprint()


def test_single_precision_warns_once():
    with pytest.warns(InputDataWarning, match="Double") as caught:
        domain = FiniteDomain(scattered(5).float())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert domain.points.dtype == torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FiniteDomain(scattered(5))


@pytest.mark.parametrize(
    ("points", "error", "message"),
    [
        (torch.empty(0, 2, dtype=torch.double), InputError, "at least one point"),
        (torch.zeros(3, dtype=torch.double), InputError, "n x d"),
        (torch.zeros(3, 0, dtype=torch.double), InputError, "n x d"),
        (torch.zeros(2, 3, 1, dtype=torch.double), InputError, "n x d"),
        (torch.tensor([[0.0], [torch.nan]]).double(), InputError, "row 1"),
        (torch.tensor([[0.0], [torch.inf]]).double(), InputError, "finite"),
        (torch.tensor([[1.0], [2.0], [1.0]]).double(), InputError, "rows 0 and 2"),
        (torch.tensor([[1], [2]]), InputTypeError, "int64"),
        ([[0.0], [1.0]], InputTypeError, "list"),
    ],
)
def test_bad_points(points, error, message):
    with pytest.raises(error, match=message):
        FiniteDomain(points)
