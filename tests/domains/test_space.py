import math

import numpy as np
import pytest
import torch
from cases import scattered

from botorch_delay.domains.space import MAX_LISTED, Choice, Float, Int, Space
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError

MIXED = {
    "rate": Float(1e-5, 1e-1, log=True),
    "width": Int(16, 256, step=16),
    "drop": Float(0.0, 0.5, step=0.1),
    "seed": Int(0, 10**9),
    "batch": Int(1, 1024, log=True),
    "tail": Float(1e-3, 2.0, log=True, step=1e-3),
    "act": Choice(["relu", None, True, 1, 1.0, "relu"]),
    "depth": Choice([8, 2, 4], ordered=True),
    "size": Choice(["small", "large"], ordered=True),
    "units": Choice([64, 16, 256], ordered=True, log=True),
    "fixed": Float(3.0, 3.0),
    "only": Choice(["one"]),
}
PAIR = {"a": Float(0.0, 1.0), "b": Int(0, 4), "c": Choice(["x", "y"])}


def test_points_become_parameters_and_parameters_points():
    space = Space(MIXED)
    assert space.domain.names == tuple(name for name in MIXED if name not in ("fixed", "only"))
    X = space.domain.from_unit(scattered(200, space.domain.dim))
    for x in X:
        values = space.decode(x)
        assert values["fixed"] == 3.0
        assert values["only"] == "one"
        assert 1e-5 <= values["rate"] <= 1e-1
        assert values["width"] in range(16, 257, 16)
        assert values["act"] in ["relu", None, True]
        assert values["depth"] in (2, 4, 8)
        assert values["size"] in ("small", "large")
        for name in ("width", "seed", "batch", "depth"):
            assert type(values[name]) is int
        assert math.isclose(values["drop"] * 10, round(values["drop"] * 10))
        assert 1e-3 <= values["tail"] <= 2.0
        again = space.decode(space.encode(values))
        assert {name: (type(v), v) for name, v in again.items()} == {
            name: (type(v), v) for name, v in values.items()
        }


def test_columns_are_what_a_learned_kernel_should_see():
    domain = Space(MIXED).domain
    at = {name: i for i, name in enumerate(domain.names)}
    assert domain.log_dims == (at["rate"], at["batch"], at["tail"], at["units"])
    assert domain.cat_dims == {at["act"]: [0.0, 1.0, 2.0, 3.0, 4.0]}
    assert set(domain.discrete_dims) == {
        at[name] for name in ("width", "drop", "depth", "size", "units")
    }
    assert domain.discrete_dims[at["depth"]] == [2.0, 4.0, 8.0]
    assert domain.discrete_dims[at["size"]] == [0.0, 1.0]
    assert domain.discrete_dims[at["drop"]][-1] == pytest.approx(0.5)
    assert len(domain.discrete_dims[at["drop"]]) == 6


def test_long_lists_vary_freely_and_every_value_has_its_share():
    space = Space({"n": Int(1, 1 + MAX_LISTED)})
    assert space.domain.discrete_dims == {}
    X = space.domain.from_unit(torch.linspace(0, 1, 40_001).double().unsqueeze(-1))
    counts = torch.bincount(torch.tensor([space.decode(x)["n"] for x in X]))[1:]
    assert len(counts) == MAX_LISTED + 1
    assert int(counts.min()) >= 38
    assert int(counts.max()) <= 41
    listed = Space({"n": Int(1, MAX_LISTED)})
    assert len(listed.domain.discrete_dims[0]) == MAX_LISTED


def test_categories_of_equal_value_and_different_type_stay_apart():
    choice = Choice(["relu", None, True, 1, 1.0, "relu"])
    assert [type(v) for v in choice.values] == [str, type(None), bool, int, float]
    assert [choice.encode(v, "act") for v in choice.values] == [0, 1, 2, 3, 4]
    assert choice.encode(np.int64(1), "act") == 3
    lists = Choice([[1, 2], [3], {"a": 1}])
    assert lists.decode(lists.encode([3], "layers")) == [3]


def test_constraints_are_about_values():
    space = Space(PAIR, [({"a": -4.0, "b": -1.0}, -3.0)])
    X = space.domain.from_unit(scattered(400, 3))
    values = [space.decode(x) for x in X]
    assert space.domain.contains(X).tolist() == [4 * v["a"] + v["b"] <= 3 for v in values]


def test_results_obtained_elsewhere_may_lie_outside():
    space = Space({"a": Float(0, 1, step=0.25), "l": Float(0.1, 1, log=True), "c": Choice("xy")})
    outside = {"a": 0.3, "l": 7.0, "c": "y"}
    assert space.encode(outside, outside=True).tolist() == [0.3, 7.0, 1.0]
    for name, value in (("a", "no number"), ("l", -1.0), ("c", "z")):
        with pytest.raises(InputError, match=f"^{name} must be"):
            space.encode({**outside, name: value}, outside=True)
    with pytest.raises(InputError, match="a must be a number from"):
        space.encode(outside)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "missing"),
        ({"a": 0.5}, r"\['c'\] missing"),
        ({"a": 0.5, "c": "x", "d": 1}, r"\['d'\] unknown"),
        ({"a": 1.5, "c": "x"}, "a must be a number from 0.0 to 1.0 in steps of 0.25, got 1.5"),
        ({"a": 0.3, "c": "x"}, "in steps of 0.25"),
        ({"a": 0.5, "c": "z"}, r"c must be one of \['x', 'y'\], got 'z'"),
        ({"a": "0.5", "c": "x"}, "a must be a number"),
    ],
)
def test_values_that_are_not_in_the_space(values, message):
    space = Space({"a": Float(0, 1, step=0.25), "c": Choice(["x", "y"])})
    with pytest.raises(InputError, match=message):
        space.encode(values)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Float(1, 0), InputError, "not be above high"),
        (lambda: Float(0, 1, log=True), InputError, "above 0 on a logarithmic"),
        (lambda: Float(0, 1, step=0), InputError, "step must be above 0"),
        (lambda: Int(0, 1.5), InputTypeError, "high must be a whole number"),
        (lambda: Int(0, 2**60), InputError, "at most 2"),
        (lambda: Float("0", 1), InputTypeError, "low must be a number"),
        (lambda: Float(0, math.inf), InputError, "finite"),
        (lambda: Choice([]), InputError, "at least one value"),
        (lambda: Space({}), InputError, "nothing to search"),
        (lambda: Space({"a": Choice([1])}), InputError, "nothing to search"),
        (lambda: Space(PAIR, [({"c": 1.0}, 0.0)]), InputError, "'c'; it must be about numbers"),
        (lambda: Space(PAIR, [({"e": 1.0}, 0.0)]), InputError, "'e'; it must be about numbers"),
        (lambda: Space(PAIR, [({"a": 1.0}, 9.0)]), InputError, "leave nothing of the box"),
        (
            lambda: Space({"n": Int(1, 5000)}, [({"n": 1.0}, 3.0)]),
            NotSupportedError,
            "'n', which has too many values",
        ),
        (lambda: Space({"a": 3}), InputTypeError, "a Float, an Int or a Choice, got int"),
    ],
)
def test_bad_spaces(make, error, message):
    with pytest.raises(error, match=message):
        make()
