"""Named spaces: every kind of parameter, there and back."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from cases import scattered
from gpytorch.kernels import RBFKernel
from hypothesis import given
from hypothesis import strategies as st

import botorch_delay as bd
from botorch_delay.domains import parameters
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.columns import Columns
from botorch_delay.domains.parameters import MAX_LISTED, Choice, Float, Int
from botorch_delay.domains.space import Space
from botorch_delay.exceptions import (
    EmptyDomainError,
    InputError,
    InputTypeError,
    OutsideWarning,
    ScaleWarning,
)
from botorch_delay.optimizers import maximizer

MIXED = {
    "rate": Float(1e-5, 1e-1, log=True),
    "width": Int(16, 256, step=16),
    "drop": Float(0.0, 0.5, step=0.1),
    "seed": Int(0, 10**9),
    "batch": Int(1, 1024, log=True),
    "tail": Float(1e-3, 2.0, log=True, step=1e-3),
    "act": Choice(["relu", None, True, 2, 3.5]),
    "depth": Choice([8, 2, 4], ordered=True),
    "size": Choice(["small", "large"], ordered=True),
    "units": Choice([64, 16, 256], ordered=True, log=True),
    "weight decay": Float(1e-6, 1e-2, log=True, round=1),
    "dial": Float(1e-3, 1e3, log=True, round=3, unit="V"),
    "fixed": Float(3.0, 3.0),
    "only": Choice(["one"]),
}
PAIR = {"a": Float(0.0, 1.0), "b": Int(0, 4), "c": Choice(["x", "y"])}


def typed(values):
    return {name: (type(v), v) for name, v in values.items()}


def test_points_become_parameters_and_parameters_points():
    domain = Space(MIXED).domain
    assert domain.names == tuple(name for name in MIXED if name not in ("fixed", "only"))
    X = domain.from_unit(scattered(200, domain.dim))
    assert domain.table(X) == [domain.params(x) for x in X]
    for values in domain.table(X):
        assert values["fixed"] == 3.0
        assert values["only"] == "one"
        assert 1e-5 <= values["rate"] <= 1e-1
        assert values["width"] in range(16, 257, 16)
        assert values["act"] in ["relu", None, True, 2, 3.5]
        assert values["depth"] in (2, 4, 8)
        assert values["size"] in ("small", "large")
        for name in ("width", "seed", "batch", "depth"):
            assert type(values[name]) is int
        assert math.isclose(values["drop"] * 10, round(values["drop"] * 10))
        assert 1e-3 <= values["tail"] <= 2.0
        assert float(f"{values['weight decay']:.0e}") == values["weight decay"]
        assert float(f"{values['dial']:.2e}") == values["dial"]
        assert typed(domain.params(domain.point(values))) == typed(values)


@given(
    low=st.integers(-50, 50),
    width=st.integers(1, 60),
    decimals=st.integers(0, 3),
    share=st.floats(0.0, 1.0),
)
def test_steps_are_decimal_fractions(low, width, decimals, share):
    step = float(f"1e-{decimals}")
    low, high = round(low * step, decimals), round((low + width) * step, decimals)
    grid = Float(low, high, step=step)
    assert grid.count == width + 1
    value = grid.decode(low + share * (high - low))
    assert grid.decode(grid.column[round(share * width)]) in grid.column
    assert all(listed == round(listed, decimals) for listed in grid.column)
    assert low <= value <= high
    assert Float(low, round(low + step, decimals), step=step).count == 2  # the upper end is kept


def test_steps_from_below_zero_end_in_no_long_digits():
    assert Float(-0.7, 0.0, step=0.1).column == [-0.7, -0.6, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0]
    assert str(Float(-0.3, 0.0, step=0.1).column[-1]) == "0.0"


@given(st.floats(1e-300, 1e300), st.integers(1, 15))
def test_significant_digits_are_counted_in_order(number, digits):
    dial = Float(1e-305, 1e305, log=True, round=digits)
    rounded = float(f"{number:.{digits - 1}e}")
    place = dial._place(number)
    assert dial._at(place) == rounded == dial.decode(number)
    assert dial._at(place - 1) < rounded < dial._at(place + 1)
    assert dial._place(dial._at(place + 1)) == place + 1


def test_decoding_computes_the_places_of_a_parameter_once(monkeypatch):
    """Feasibility tests decode every point that an ask looks at, so decoding must be cheap."""
    share = Float(0.0, 0.3, step=0.1)
    assert share.decode(0.1) == 0.1
    monkeypatch.setattr(parameters, "Fraction", None)
    assert [share.decode(number) for number in (0.2, 0.3)] == [0.2, 0.3]
    assert share.encode(0.3, "share") == 0.3


def test_rounding_lists_the_numbers_of_a_dial():
    assert Float(0.8, 30.0, log=True, round=1).column == [0.8, 0.9, *range(1, 11), 20, 30]
    assert Float(0.1, 10.0, log=True, round=2).count == 181
    assert Float(1e-5, 1.0, log=True, round=3).column is None


def test_columns_are_what_a_learned_kernel_should_see():
    domain = Space(MIXED).domain
    at = {name: i for i, name in enumerate(domain.names)}
    logs = ("rate", "batch", "tail", "units", "weight decay", "dial")
    assert domain.log_dims == tuple(at[name] for name in logs)
    assert domain.cat_dims == {at["act"]: [0.0, 1.0, 2.0, 3.0, 4.0]}
    listed = ("width", "drop", "depth", "size", "units", "weight decay")
    assert set(domain.discrete_dims) == {at[name] for name in listed}
    assert domain.discrete_dims[at["depth"]] == [2.0, 4.0, 8.0]
    assert domain.discrete_dims[at["size"]] == [0.0, 1.0]
    assert domain.discrete_dims[at["drop"]] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]


def test_long_lists_vary_freely_and_every_value_has_its_share():
    domain = Space(n=Int(1, 1 + MAX_LISTED, log=False)).domain
    assert domain.discrete_dims == {}
    X = domain.from_unit(torch.linspace(0, 1, 40_001).double().unsqueeze(-1))
    counts = torch.bincount(torch.tensor([row["n"] for row in domain.table(X)]))[1:]
    assert len(counts) == MAX_LISTED + 1
    assert int(counts.min()) >= 38
    assert int(counts.max()) <= 41
    assert len(Space(n=Int(1, MAX_LISTED, log=False)).domain.discrete_dims[0]) == MAX_LISTED


@pytest.mark.parametrize(
    "number",
    [
        Int(100, 1200),
        Int(0, 5000, step=3),
        Int(1, 10**6, log=True),  # too many for a table
        Float(-1.0, 1.0, step=0.0003),
        Float(1e-4, 1.0, log=True, round=4),
    ],
)
def test_many_numbers_are_rounded_as_one_is(number):
    low, high = number.bounds
    inside = np.random.default_rng(0).uniform(low, high, 3000)  # never half way between two values
    rounded = number.rounded(inside)
    assert rounded.tolist() == [number.decode(each) for each in inside.tolist()]
    outside = number.rounded(np.array([low - 2.0, high + 2.0]))
    assert outside.tolist() == [low - 2.0, high + 2.0]


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("kind", [bd.BPEDelayOptimizer, bd.RandomOptimizer])
def test_exact_settings_do_not_come_twice_where_steps_are_many(kind):
    space = bd.Space(rpm=Int(100, 1200))
    opt = kind(space, horizon=24, exact=True)
    opt.attach([{"rpm": rpm} for rpm in (640, 700, 760)], [-0.0144, 0.0, -0.0144])
    for _ in range(6):
        for trial in opt.ask(4):
            opt.tell(trial, -(((trial.params["rpm"] - 700) / 500) ** 2))
    asked = [trial.params["rpm"] for trial in opt.trials]
    assert len({*asked, 640, 700, 760}) == 27
    assert [trial.x.item() for trial in opt.trials] == asked  # modelled as evaluated


def test_exact_settings_are_all_asked_where_steps_are_many(monkeypatch):
    monkeypatch.setattr(parameters, "MAX_LISTED", 3)
    monkeypatch.setattr(maximizer, "BOX_POOL", 4)
    opt = bd.BPEDelayOptimizer(bd.Space(a=Int(0, 7), b=Int(5, 7)), horizon=99, exact=True)
    for _ in range(24):
        trial = opt.ask()
        opt.tell(trial, float(trial.params["a"]))
    assert len({tuple(trial.params.values()) for trial in opt.trials}) == 24
    with pytest.raises(EmptyDomainError, match="No point is left to ask"):
        opt.ask()


def test_the_ends_of_many_steps_are_those_of_the_parameter():
    opt = bd.BPEDelayOptimizer(bd.Space(rpm=Int(100, 5000)), 20)
    with pytest.warns(OutsideWarning, match="rpm = 9000 is not in 100 to 5000"):
        opt.attach({"rpm": 9000}, 1.0)


def test_a_design_on_many_steps_is_of_values():
    space = bd.Space(a=Int(0, 2000), b=Float(0.0, 1.0))
    kernel = RBFKernel(ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor([[400.0, 0.2]], dtype=torch.double)
    opt = bd.BPEDelayOptimizer(space, 30, covar_module=kernel, noise_var=1e-2, exploit=None)
    for trial in opt.ask(12):
        assert trial.x[0] == trial.params["a"]
        opt.tell(trial, 0.1)


def test_categories_may_be_of_many_types():
    choice = Choice(["relu", None, True, 2])
    assert [choice.encode(v, "act") for v in choice.values] == [0, 1, 2, 3]
    assert choice.encode(np.int64(2), "act") == 3
    assert bd.Choice([False, True]).encode(np.True_, "bias") == 1
    with pytest.raises(InputError, match="act must be one of"):
        choice.encode(1, "act")
    lists = Choice([[1, 2], [3], {"a": 1}])
    assert lists.decode(lists.encode([3], "layers")) == [3]


def test_names_and_arguments():
    space = Space({"weight decay": Float(0, 1), "feasible": Int(0, 3)}, parameters=Int(1, 2))
    assert list(space.parameters) == ["weight decay", "feasible", "parameters"]
    assert Space(self=Int(0, 1)).domain.names == ("self",)
    assert "weight decay" in repr(space)


# Constraints


def test_constraints_are_about_values():
    domain = Space(PAIR, constraints=[({"a": -4.0, "b": -1.0}, -3.0)]).domain
    X = domain.from_unit(scattered(400, 3))
    values = domain.table(X)
    assert domain.contains(X).tolist() == [4 * v["a"] + v["b"] <= 3 for v in values]


def test_constraints_hold_for_values_that_are_rounded():
    domain = Space(
        n=Int(0, 5000), m=Int(0, 5000), constraints=[({"n": -1.0, "m": -1.0}, -4000.0)]
    ).domain
    edge = torch.tensor([[1999.6, 2000.4], [1999.6, 2000.6], [1999.4, 2000.6]]).double()
    assert domain.table(edge)[1] == {"n": 2000, "m": 2001}
    assert domain.contains(edge).tolist() == [True, False, True]
    X = domain.from_unit(scattered(200, 2)).requires_grad_(True)
    slack = domain.slack(X)
    (slope,) = torch.autograd.grad(slack.sum(), X)
    assert bool((slope < 0).all())  # the margin of an active set still has a gradient


def test_feasible_is_about_values():
    def feasible(params):
        return params["c"] == "x" or params["b"] > 2

    domain = Space(PAIR, feasible=feasible).domain
    X = domain.from_unit(scattered(100, 3))
    assert domain.contains(X).tolist() == [feasible(v) for v in domain.table(X)]
    with pytest.raises(InputTypeError, match=r"feasible must return True or False .* got None"):
        Space(PAIR, feasible=lambda params: None).domain.contains(X)


def test_an_error_in_feasible_is_told_with_the_parameters_there_are():
    def misspelt(params):
        return params["aa"] > 0

    given = r"feasible raised KeyError: 'aa'. It is called with a dict with the parameters a, b, c"
    with pytest.raises(InputError, match=given) as caught:
        bd.BPEDelayOptimizer(Space(PAIR, feasible=misspelt), 10)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(InputError, match="parameters n"):
        Space.grid(n=Int(0, 3), feasible=misspelt)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    box = bd.BoxDomain(bounds, feasible=lambda X: X[:, 2] > 0)
    with pytest.raises(InputError, match=r"IndexError: .* It is called with points, n x 2"):
        box.contains(bounds)


def test_an_error_for_what_hardly_any_point_passes_has_no_word_of_how_it_is_searched():
    space = Space(a=Float(0, 1), feasible=lambda params: False)
    with pytest.raises(EmptyDomainError, match=r"relax them.*passes\.$"):
        bd.BPEDelayOptimizer(space, 10).ask()


# Sets


@pytest.mark.parametrize(
    ("parameter", "warns"),
    [
        (Float(1e-4, 0.1), True),
        (Float(1.1e-4, 0.1), False),
        (Float(0.0, 1.0), False),
        (Float(1e-5, 0.1, log=False), False),
        (Float(1e-5, 0.1, log=True), False),
        (Float(0.001, 1.0, step=0.001), False),
        (Int(1, 1000), True),
        (Int(8, 8192, step=8), False),
        (Int(-5000, 5), False),
        (Choice([0.001, 1.0], ordered=True), False),
    ],
)
def test_numbers_that_span_decades_need_a_word_on_their_scale(parameter, warns, tmp_path):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        space = Space(rate=parameter, other=Float(0.0, 1.0))
        opt = bd.RandomOptimizer(space)
        opt.save(tmp_path / "study.db")
        assert bd.load(tmp_path / "study.db").domain.columns == space.domain.columns
    assert [type(each.message) for each in said] == [ScaleWarning] * warns
    if warns:
        assert str(said[0].message).startswith("rate: the numbers span decades. Pass log=True (")
        assert said[0].filename == __file__
        assert replace(parameter, log=False) == parameter


def test_a_grid_is_every_combination_that_is_allowed():
    parameters = {
        "a": Float(0, 1, step=0.5),
        "b": Int(0, 3),
        "c": Choice(["x", "y"]),
        "d": Int(7, 7),
    }
    domain = Space.grid(
        parameters,
        constraints=[({"a": -1.0, "b": -1.0}, -2.0)],
        feasible=lambda params: params["c"] == "x" or params["b"] == 0,
    ).domain
    expected = [
        {"a": a, "b": b, "c": c, "d": 7}
        for a in (0.0, 0.5, 1.0)
        for b in range(4)
        for c in "xy"
        if a + b <= 2 and (c == "x" or b == 0)
    ]
    assert domain.table(domain.points) == expected
    assert domain.cat_dims == (2,)
    assert len(Space.grid(n=Int(1, 5000, log=False)).domain) == 5000


TABLE = [
    {"acid": "citric", "pH": 3.5, "runs": 2, "wet": True, "same": 1},
    {"acid": "malic", "pH": 3.1, "runs": 30, "wet": False, "same": 1},
    {"acid": "citric", "pH": 4.0, "runs": 2, "wet": False, "same": 1},
]


def test_arms_come_from_rows_frames_and_files(tmp_path):
    file = tmp_path / "arms.csv"
    pd.DataFrame(TABLE).to_csv(file, index=False)
    for table in (TABLE, pd.DataFrame(TABLE), file, str(file)):
        domain = Space.arms(table, runs=Int(1, 64, log=True, unit="h")).domain
        assert [typed(row) for row in domain.table(domain.points)] == [typed(row) for row in TABLE]
        assert domain.names == ("acid", "pH", "runs", "wet")
        assert domain.cat_dims == (0, 3)
        assert domain.log_dims == (2,)
        assert domain.columns.units == {"runs": "h"}
    rows = domain.find(torch.stack([domain.point(row) for row in reversed(TABLE)]))
    assert rows.tolist() == [2, 1, 0]


def test_a_file_of_arms_may_have_semicolons_and_decimal_commas(tmp_path):
    file = tmp_path / "arms.csv"
    file.write_text("acid; dose\ncitric, pure;0,5\nmalic;1\n", encoding="utf-8")
    domain = Space.arms(file).domain
    assert domain.table(domain.points) == [
        {"acid": "citric, pure", "dose": 0.5},
        {"acid": "malic", "dose": 1.0},
    ]


def test_words_that_look_like_numbers_stay_words_in_a_file(tmp_path):
    file = tmp_path / "arms.csv"
    file.write_text("\ufeffcode, dose\n007,1\n12a,2\n\n", encoding="utf-8")
    assert Space.arms(file).domain.table(torch.tensor([[0.0, 1.0]]).double()) == [
        {"code": "007", "dose": 1}
    ]
    file.write_text("code,dose\n1,1\n2,2\nnone,3\n")
    for values in (["1", "2", "none"], [1, 2, "none"]):
        chosen = Space.arms(file, code=Choice(values)).domain
        assert [row["code"] for row in chosen.table(chosen.points)] == values
    file.write_text("code,dose\n007,1\n008,2\n")
    codes = Space.arms(file, code=Choice(["007", "008"])).domain
    assert codes.table(codes.points)[1] == {"code": "008", "dose": 2}
    ids = Space.arms(pd.DataFrame({"id": ["001", "002"], "size": [2, "L"]})).parameters
    assert ids == {"id": Choice(["001", "002"]), "size": Choice([2, "L"])}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["007", "7", "8", "9"], ["007", "7", "8", "9"]),
        (["001", "010", "100", "101", "102"], ["001", "010", "100", "101", "102"]),
        (["1E5", "2E5"], ["1E5", "2E5"]),
        (["500", "1000", "1E5", "2000"], [500, 1000, 1e5, 2000]),
        (["1e5", "1E-5", "1E+05", "0.5", "0"], [1e5, 1e-5, 1e5, 0.5, 0.0]),
        (["1,2", "1,3", "1,3-diol", "none"], ["1,2", "1,3", "1,3-diol", "none"]),
        (["0,5", "1", "-0,25"], [0.5, 1.0, -0.25]),
    ],
)
def test_codes_in_a_file_are_told_from_numbers(tmp_path, cells, expected):
    rows = "".join(f"{cell};{number}\n" for number, cell in enumerate(cells))
    (tmp_path / "arms.csv").write_text(f"code;row\n{rows}")
    domain = Space.arms(tmp_path / "arms.csv").domain
    assert [row["code"] for row in domain.table(domain.points)] == expected


def test_a_slip_among_decimal_commas_is_told(tmp_path):
    (tmp_path / "arms.csv").write_text("dose;row\n0,5;1\n0,7;2\nn/a;3\n")
    with pytest.raises(InputError, match="line 4 has dose = 'n/a', where most others are numbers"):
        Space.arms(tmp_path / "arms.csv")


# Values from elsewhere, and JSON


def test_results_obtained_elsewhere_may_lie_outside():
    domain = Space(
        a=Float(0, 1, step=0.25),
        l=Float(0.1, 1, log=True),
        n=Int(1, 3),
        o=Choice([1, 2, 4], ordered=True),
        c=Choice(["x", "y"]),
    ).domain
    outside = {"a": 0.3, "l": 7.0, "n": 9, "o": 3.0, "c": "y"}
    x = domain.point(outside, outside=True)
    assert x.tolist() == [0.3, 7.0, 9.0, 3.0, 1.0]
    assert domain.params(x) == outside
    between = torch.tensor([0.5, 0.5, 1.7, 2.0, 0.0], dtype=torch.double)
    assert domain.params(between)["n"] == 1.7  # as given, neither rounded nor truncated
    for name, value in (("a", "word"), ("l", -1.0), ("n", 2.5), ("o", "word"), ("c", "z")):
        with pytest.raises(InputError, match=f"^{name} must be"):
            domain.point({**outside, name: value}, outside=True)
    with pytest.raises(InputError, match="a must be a number from"):
        domain.point(outside)


def test_columns_come_back_from_json():
    columns = Space(MIXED).domain.columns
    again = Columns.build(json.loads(json.dumps(columns.describe())))
    assert again == columns
    assert again.describe() == columns.describe()
    assert {type(value) for value in again.parameters["act"].values} == {
        *(str, type(None), bool, int, float)
    }


def test_spaces_are_told_apart_by_their_values():
    same, other = Space(c=Choice(["x", "y"])), Space(c=Choice(["x", "z"]))
    assert same.domain.fingerprint() == Space(c=Choice(["x", "y"])).domain.fingerprint()
    assert same.domain.fingerprint() != other.domain.fingerprint()


def test_a_domain_without_a_space_has_names_and_numbers():
    domain = BoxDomain(torch.tensor([[0.0, 1.0], [1.0, 3.0]]).double(), names=["a", "b"])
    assert domain.params(torch.tensor([0.5, 2.0]).double()) == {"a": 0.5, "b": 2.0}
    assert domain.point({"b": 2, "a": 0.5}).tolist() == [0.5, 2.0]
    assert "space" not in domain.describe()
    with pytest.raises(InputError, match=r"\['b'\] missing"):
        domain.point({"a": 0.5})
    with pytest.raises(InputError, match="one point, of shape 2"):
        domain.params(domain.bounds)


# Mistakes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "missing"),
        ({"a": 0.5, "n": 1}, r"\['c'\] missing"),
        ({"a": 0.5, "n": 1, "c": "x", "d": 1}, r"\['d'\] unknown"),
        ({"a": 1.5}, "a must be a number from 0 to 1 in steps of 0.25, got 1.5"),
        ({"a": 0.3}, "in steps of 0.25"),
        ({"a": math.nan}, "a must be finite, got nan"),
        ({"a": "0.5"}, "a must be a number, got str '0.5'"),
        ({"n": "2"}, "n must be a whole number, got '2'"),
        ({"n": True}, "n must be a whole number, got True"),
        ({"n": 2.5}, "n must be a whole number, got 2.5"),
        ({"n": 4}, "n must be a whole number from 1 to 3, got 4"),
        ({"c": "z"}, r"c must be one of \['x', 'y'\], got 'z'"),
        ({"c": pd.NA}, r"c must be one of \['x', 'y'\], got <NA>"),
        ({"c": np.array([1, 2])}, r"c must be one of \['x', 'y'\], got array"),
        ([0.5, 1, "x"], "params must map each of"),
    ],
)
def test_values_that_are_not_in_the_space(values, message):
    domain = Space(a=Float(0, 1, step=0.25), n=Int(1, 3), c=Choice(["x", "y"])).domain
    if isinstance(values, dict) and len(values) == 1:
        values = {"a": 0.5, "n": 1, "c": "x"} | values
    with pytest.raises(InputError, match=message):
        domain.point(values)


def test_a_step_may_be_as_long_as_the_range_but_no_longer():
    assert bd.Float(0.1, 0.3, step=0.2).listed() == [0.1, 0.3]
    assert bd.Float(1.1, 1.2, step=0.1).listed() == [1.1, 1.2]
    with pytest.raises(InputError, match=r"step must fit into high - low = 1\.0"):
        bd.Float(0, 1, step=2.0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Float(1, 0), InputError, "not be above high"),
        (lambda: Float(0, 1, log=True), InputError, "above 0 on a logarithmic"),
        (lambda: Float(0, 1, step=0), InputError, "step must be above 0"),
        (lambda: Float(0.1, 1, round=2), InputError, "needs log=True"),
        (lambda: Float(0.1, 1, log=True, step=0.1, round=2), InputError, "without step"),
        (lambda: Float(0.123, 1, log=True, round=2), InputError, "low must have at most the 2"),
        (lambda: Float(0.1, 1, log=True, round=0), InputError, "round must be at least 1"),
        (lambda: Float(0, 1, unit=3), InputTypeError, "unit must be a string"),
        (lambda: Float(0, 1, log="yes"), InputTypeError, "log must be True or False"),
        (lambda: Int(0, 1.5), InputTypeError, "high must be a whole number"),
        (lambda: Int(False, 5), InputTypeError, "low must be a whole number"),
        (lambda: Int(0, 2**60), InputError, "at most 9007199254740992"),
        (lambda: Float("0", 1), InputTypeError, "low must be a number, got str '0'"),
        (lambda: Float(0, None), InputTypeError, "high must be a number, got NoneType"),
        (lambda: Float(0, 1, step=2.0), InputError, "step must fit .* = 1.0, got 2.0"),
        (lambda: Int(0, 1, step=2), InputError, "step must fit .* = 1, got 2"),
        (lambda: Float(0, math.inf), InputError, "finite"),
        (lambda: Choice([]), InputError, "at least one value"),
        (lambda: Choice("xy"), InputTypeError, "values must be a list"),
        (lambda: Choice([1.0, math.nan]), InputError, "not contain NaN"),
        (lambda: Choice([1, math.inf], ordered=True), InputError, "finite"),
        (lambda: Choice(["a", "b", "a"]), InputError, "must differ; 'a' and 'a' are equal"),
        (lambda: Choice([[1], [1.0]]), InputError, "must differ"),
        (lambda: Choice([None, None]), InputError, "must differ; None and None are equal"),
        (lambda: Choice(["a", True, 1]), InputError, "must differ; True and 1 are equal"),
        (lambda: Choice([2**53, 2**53 + 1], ordered=True), InputError, "must differ"),
        (lambda: Choice([1, 1.0], ordered=True), InputError, "must differ; 1 and 1.0 are equal"),
        (lambda: Choice([[1], [1]]), InputError, r"must differ; \[1\] and \[1\] are equal"),
        (lambda: Choice([0, 1], ordered=True, log=True), InputError, "needs numbers above 0"),
        (lambda: Choice([2, 1], log=True), InputError, "needs ordered=True, and numbers"),
        (lambda: Choice(["a", print]), InputTypeError, "files can hold them; got <built"),
        (lambda: Choice([{1: "a"}]), InputTypeError, "strings as keys.* got {1: 'a'}"),
        (lambda: Choice([{"tuple": [1]}]), InputTypeError, "got {'tuple': "),
        (lambda: Choice([{"a": 1, "b": 2}, {"b": 2, "a": 1}]), InputError, "must differ"),
        (lambda: Float(1e6, 2e6, step=7e-10), InputError, r"at least 1e-08, .* size 2e\+06"),
        (lambda: Float(0, 1e300, step=1e-20), InputError, "step must be larger for high - low"),
        (lambda: Space({}), InputError, "nothing to search"),
        (lambda: Space(a=Choice([1])), InputError, "nothing to search"),
        (lambda: Space(a=3), InputTypeError, "a Float, an Int or a Choice, got int"),
        (lambda: Space(a=["x", "y"]), InputTypeError, r"got list; .* bd.Choice\(\['x', 'y'\]\)"),
        (lambda: Space(a=bool), InputTypeError, "a Float, an Int or a Choice, got type"),
        (lambda: Space([Int(0, 1)]), InputTypeError, "a dict of parameters by name, got list"),
        (lambda: Space({"a": Int(0, 1)}, a=Int(0, 1)), InputError, "'a' is given twice"),
        (lambda: Space({" ": Int(0, 1)}), InputError, "strings that are not empty, got ' '"),
        (lambda: Space({"": Int(0, 1)}), InputError, "not empty"),
        (lambda: Space(PAIR, feasible=3), InputTypeError, "function of parameters, got int"),
        (lambda: Space(PAIR, constraints=[({"c": 1.0}, 0.0)]), InputError, "can vary, .*; got 'c'"),
        (lambda: Space(PAIR, constraints=[({"e": 1.0}, 0.0)]), InputError, "can vary, .*; got 'e'"),
        (lambda: Space(PAIR, constraints=[({"a": 1.0}, 9.0)]), InputError, "leave nothing"),
        (lambda: Space(PAIR, constraints=["a <= 1"]), InputTypeError, "factors by name"),
        (lambda: Space(PAIR, constraints=3), InputTypeError, "constraints must be a list"),
        (lambda: Space.grid(PAIR), InputError, "a is a Float without steps, and a grid needs them"),
        (lambda: Space.grid(a=Int(0, 2000), b=Int(0, 2000)), InputError, "4004001 combinations"),
        (lambda: Space.grid(a=Int(0, 2), feasible=lambda p: False), InputError, "nothing of the"),
        (lambda: Space.arms([]), InputError, "at least one row"),
        (lambda: Space.arms(3), InputTypeError, "a list of dicts"),
        (lambda: Space.arms(pd.Series([1, 2])), InputTypeError, "a list of dicts.*got Series"),
        (
            lambda: Space.arms(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"])),
            InputError,
            "distinct names",
        ),
        (lambda: Space.arms([{"a": 1}, {"b": 1}]), InputError, "arm 1 has"),
        (lambda: Space.arms([{"a": 1}, {"a": None}]), InputError, "arm 1 has no a"),
        (lambda: Space.arms([{"a": 1.0}, {"a": math.nan}]), InputError, "arm 1 has no a"),
        (lambda: Space.arms([{"a": 1.0}, {"a": pd.NA}]), InputError, "arm 1 has no a"),
        (
            lambda: Space.arms([{"a": 1}, {"a": 2}, {"a": 1}]),
            InputError,
            "arm 0 and .*2 are both",
        ),
        (lambda: Space.arms([{"a": 1}, {"a": 9}], a=Int(0, 5)), InputError, "arm 1: a must be"),
        (lambda: Space.arms([{"a": 1}, {"a": 2}], b=Int(0, 5)), InputError, "no column 'b'"),
        (
            lambda: Space.arms([{"a": "1"}, {"a": "2"}]),
            InputError,
            "a = '1', a number as",
        ),
        (
            lambda: Space.arms(pd.DataFrame({"a": [1, 2.5, "n/a"]})),
            InputError,
            "arm 2 has a = 'n/a', where most",
        ),
        (
            lambda: Space.arms([{"a": 20}, {"a": "030"}, {"a": 40}]),
            InputError,
            "arm 1 has a = '030', where most",
        ),
        (
            lambda: Space.arms([{"a": "x"}, {"a": "y"}], a=Choice(["x"])),
            InputError,
            "arm 1: a must be one of",
        ),
        (lambda: Space.arms("none.csv"), InputError, "No such file"),
    ],
)
def test_bad_spaces(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "at least one arm"),
        ("a,a\n1,2", "distinct"),
        ("a,\n1,2", "not empty"),
        ("1,2\n3,4", "header"),
        ("a,b\n1", "line 2: expected a value for each of"),
        ("a,b\n1,2\n3,", "line 3: expected a value for each of"),
        ("a,b\n1,nan\n2,3", "line 2 has no b, got nan"),
        ("a,b\n1,inf\n2,3", "b: high must be finite"),
        ("a,b\n1,2\n\n1,3\n1,2", "line 2 and .*, line 5 are both"),
        ("a,b\n1,2\n1,2\n", "line 2 and .*, line 3 are both"),
        ("a,b\n1,0.1\n2,0.2\n3,n/a", "line 4 has b = 'n/a', where most others are numbers"),
    ],
)
def test_bad_files(tmp_path, text, message):
    file = tmp_path / "arms.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        Space.arms(file)


def test_slips_in_parameters_are_found_when_they_are_made():
    with pytest.raises(InputError, match="step must be a whole number, 1 to allow all"):
        bd.Int(1, 5, step=None)
    with pytest.raises(InputError, match="the factor of a must be a number"):
        bd.Space(a=bd.Float(0, 1), constraints=[({"a": "1"}, 1)])
    with pytest.raises(InputError, match="a factor for at least one name"):
        bd.Space(a=bd.Float(0, 1), constraints=[({}, 1)])
    with pytest.raises(InputError, match="must be a torch"):
        bd.Space(a=bd.Float(0, 1)).domain.params([0.5])
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(InputError, match="double or single precision"):
            bd.FiniteDomain(scattered(4).to(dtype))


def test_choices_of_numpy_are_plain_values(tmp_path):
    space = bd.Space(n=bd.Choice(np.arange(1, 4)), c=bd.Choice([np.float32(0.5), "x"]))
    opt = bd.BPEDelayOptimizer(space, 10)
    opt.tell(opt.ask(), 1.0)
    opt.save(tmp_path / "study.db")
    assert bd.load(tmp_path / "study.db").domain.columns.parameters["n"].values == (1, 2, 3)


def test_a_list_that_is_changed_where_it_is_used_changes_no_choice():
    own = [[32], {"layers": [64]}]
    space = bd.Space(hidden=bd.Choice(own))
    own[0].append(1)
    opt = bd.BPEDelayOptimizer(space, 10)
    trials = opt.ask(2)
    for trial in trials:
        hidden = trial.params["hidden"]
        (hidden if isinstance(hidden, list) else hidden["layers"]).append(10)
    assert space.parameters["hidden"].values == ([32], {"layers": [64]})
    assert all(trial.params["hidden"] in ([32], {"layers": [64]}) for trial in trials)


def test_choices_come_back_from_a_file_as_they_were(tmp_path):
    values = [None, "x", (64, 64), [64, 64], ((1, (2,)), "a"), [(1, 2), []]]
    values += [{"layers": (8, 8), "last": [{"act": (1,)}]}, {"layers": [8, 8]}, {}]
    opt = bd.RandomOptimizer(bd.Space(c=bd.Choice(values)))
    opt.ask(20)
    for _ in range(2):  # the second save must recognise the same study
        opt.save(tmp_path / "study.db")
    again = bd.load(tmp_path / "study.db")
    assert again.domain.columns.parameters["c"].values == tuple(values)
    assert [trial.params for trial in again.trials] == [trial.params for trial in opt.trials]
    assert again.domain.fingerprint() == opt.domain.fingerprint()


def test_columns_of_a_table_have_different_names():
    space = bd.Space({"value": bd.Float(0, 1), "parameter value": bd.Float(2, 3)})
    opt = bd.BPEDelayOptimizer(space, 10)
    opt.tell(opt.ask(), 1.0)
    row = opt.table()[0]
    assert row["value"] == 1.0
    assert 0 <= row["parameter parameter value"] <= 1 < 2 <= row["parameter value"] <= 3


def test_numbers_of_a_choice_are_found_within_rounding():
    space = bd.Space(x=bd.Choice([0, 0.333333333333, 1], ordered=True))
    assert float(space.domain.point({"x": 1.0 / 3.0})) == 0.333333333333
    for value in (0.3334, 10**400):
        with pytest.raises(InputError, match=r"x must be one of .*, got"):
            space.domain.point({"x": value})


def test_an_interval_wider_than_numbers_go_is_refused():
    with pytest.raises(InputError, match=r"high - low must be finite, got -1\.7e\+308"):
        bd.Float(-1.7e308, 1.7e308)


def test_steps_of_one_are_told_unless_numbers_are_whole_anyway():
    assert Float(0.0, 10.0, step=1.0).summary == "a number from 0 to 10 in steps of 1"
    assert Int(0, 10).summary == "a whole number from 0 to 10"
    assert Int(0, 10, step=2).summary == "a whole number from 0 to 10 in steps of 2"
    assert Float(0.0, 10.0).summary == "a number from 0 to 10"


def test_the_last_of_very_many_steps_is_not_beyond_the_end():
    low = 86_177
    domain = Space(n=Int(low, low + 10**15, log=False), x=Float(0.0, 1e12 + 0.5, step=1.0)).domain
    last = domain.params(domain.from_unit(torch.ones(1, 2, dtype=torch.double))[0])
    assert last == {"n": low + 10**15, "x": 1e12}
    assert Int(0, 10**15).count == 10**15 + 1
    assert Float(0.0, 0.3, step=0.1).count == 4
    assert Float(70388.0, 70388.06171, step=0.002057).count == 31  # exactly 30 steps in decimals
    assert Float(791924.0, 791924.003695, step=0.003695).count == 2


def test_columns_wider_than_numbers_are_refused():
    with pytest.raises(InputError, match=r"width of a column must be finite.*use other units"):
        bd.FiniteDomain(torch.tensor([[-1.7e308], [1.7e308]], dtype=torch.double))


def test_masked_points_are_refused():
    opt = bd.RandomOptimizer(bd.FiniteDomain(torch.eye(2, dtype=torch.double)))
    with pytest.raises(InputError, match="x has masked values"):
        opt.attach(np.ma.array([[0.5, 0.5]], mask=[[True, False]]), [1.0])
    opt.attach(np.ma.array([[0.5, 0.5]]), [1.0])


def test_data_frames_are_points_and_series_their_values():
    opt = bd.RandomOptimizer(Space(PAIR))
    frame = pd.DataFrame({"a": [0.5, 0.25], "b": [1, 2], "c": ["x", "y"], "y": [1.0, 2.0]})
    opt.attach(frame[["a", "b", "c"]], frame["y"])
    assert [(opt.domain.params(result.x), result.value) for result in opt.attached] == [
        ({"a": 0.5, "b": 1, "c": "x"}, 1.0),
        ({"a": 0.25, "b": 2, "c": "y"}, 2.0),
    ]
    with pytest.raises(InputError, match=r"x\[0\]: Give a .* for nothing else: \['y'\] unknown"):
        opt.attach(frame, frame["y"])
    times = pd.Series(np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]"))
    with pytest.raises(InputTypeError, match=r"y\[0\] must be a number, got datetime64"):
        opt.attach(frame[["a", "b", "c"]], times)
    twice = pd.DataFrame([[0.5, 0.5]], columns=["a", "a"])
    with pytest.raises(InputError, match="columns of a table must have distinct names"):
        opt.attach(twice, [1.0])


def test_none_is_found_again_in_tables_of_pandas():
    space = Space(depth=Choice([None, 4]), kind=Choice([None, "x"]))
    table = pd.DataFrame({"depth": [None, 4], "kind": [pd.NA, "x"]})
    points = space.domain.points_of(table, "X")
    assert space.domain.table(points) == [{"depth": None, "kind": None}, {"depth": 4, "kind": "x"}]
    arms = Space.arms(table, **space.parameters)
    assert arms.domain.table(arms.domain.points) == space.domain.table(points)
    with pytest.raises(InputError, match=r"arm 0 has no depth, got nan"):
        Space.arms(table, kind=space.parameters["kind"])


def test_values_of_pandas_are_not_paired_with_other_rows():
    table = pd.DataFrame({"a": [0.25, 0.5, 0.75]})
    values = pd.Series([1.0, 2.0, 3.0])
    opt = bd.RandomOptimizer(Space(a=Float(0, 1)))
    with pytest.raises(InputError, match="x and y must have the same index"):
        opt.attach(table[::-1], values)
    opt.attach(table[::-1], values[::-1])
    opt.attach(table[::-1], [6.0, 5.0, 4.0])
    assert [(r.x.item(), r.value) for r in opt.attached[::2]] == [
        (0.75, 3.0),
        (0.25, 1.0),
        (0.5, 5.0),
    ]


def test_grids_and_arms_of_a_space_begin_with_its_parameters():
    space = Space(
        lr=Float(1e-5, 1e-1, log=True),
        layers=Int(1, 6),
        constraints=[({"layers": 1.0}, 2.0)],
    )
    arms = space.arms([{"lr": 1e-3, "layers": 2}, {"lr": 1e-2, "layers": 3}])
    assert arms.parameters == space.parameters
    assert arms.domain.log_dims == (0,)
    with pytest.raises(InputError, match=r"arm 0: lr must be a number from 1e-05 to 0\.1, got 5"):
        space.arms([{"lr": 5.0, "layers": 2}])
    grid = space.grid(lr=Float(0.0, 1.0, step=0.25))
    assert list(grid.parameters) == ["lr", "layers"]
    assert len(grid.domain) == 5 * 5  # two layers or more
    with pytest.raises(InputError, match="lr is a Float without steps"):
        space.grid()
    with pytest.raises(InputTypeError, match="parameters must be a dict of parameters by name"):
        space.grid(3)


@pytest.mark.parametrize(
    "domain",
    [
        bd.FiniteDomain(torch.linspace(0, 1, 11, dtype=torch.double).unsqueeze(-1)),
        bd.BoxDomain(
            torch.tensor([[0.0], [1.0]], dtype=torch.double),
            {0: torch.linspace(0, 1, 11, dtype=torch.double).tolist()},
        ),
    ],
)
def test_points_that_rounding_keeps_outside_are_warned_of(domain):
    opt = bd.RandomOptimizer(domain)
    X = torch.tensor([[0.0], [0.3], [0.9]], dtype=torch.double)  # 0.30000000000000004 in the set
    with pytest.warns(OutsideWarning, match=r"rounding alone .*: \[0\.3\] is the first"):
        opt.attach(X, [0.0, 5.0, 1.0])
    opt.attach(torch.tensor([0.55], dtype=torch.double), 1.0)  # truly outside


def test_steps_that_miss_the_upper_end_are_described_by_the_last_value():
    with pytest.raises(InputError, match="a whole number from 0 to 9 in steps of 3, got 10"):
        Space(a=Int(0, 10, step=3)).domain.point({"a": 10})
