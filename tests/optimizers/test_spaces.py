"""Every optimizer on a named space: parameters out, parameters in, and the space in the file."""

import copy
import json
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from cases import se
from scale import some

import botorch_delay as bd
from botorch_delay.exceptions import (
    InputError,
    InputTypeError,
    OutlierWarning,
    OutsideWarning,
    StorageError,
)

PARAMETERS = {
    "lr": bd.Float(1e-4, 1e-1, log=True),
    "layers": bd.Int(1, 6),
    "dose": bd.Float(0.1, 10.0, log=True, round=2, unit="mg/ml"),
    "act": bd.Choice(["relu", "tanh", None]),
    "weight decay": bd.Float(0.0, 0.3, step=0.1),
    "bias": bd.Choice([True, False]),
}
CONSTRAINTS = [({"layers": -1.0, "weight decay": -10.0}, -7.0)]


def feasible(params):
    return params["act"] != "tanh" or params["layers"] <= 4


def satisfies(params):
    return params["layers"] + 10 * params["weight decay"] <= 7 + 1e-9 and feasible(params)


def box():
    return bd.Space(PARAMETERS, constraints=CONSTRAINTS, feasible=feasible)


def grid():
    return bd.Space.grid(
        layers=bd.Int(1, 6),
        act=bd.Choice(["relu", "tanh"]),
        dose=bd.Choice([0.1, 1.0, 10.0], ordered=True, log=True, unit="mg/ml"),
        feasible=feasible,
    )


def fixed(**options):
    return {"covar_module": se(1.0), "noise_var": 0.01} | options


def threds(space):
    return bd.ThreDSOptimizer(
        space, confidence=bd.FixedBeta(4.0), interval=(-9.0, 9.0), patience=4, **fixed()
    )


def published(space):
    options = fixed(confidence=bd.FixedBeta(4.0), delay=bd.ConstantDelay(1))
    return bd.BPEDelayOptimizer.as_published(space, 20, **options)


def guaranteed(space):
    return bd.BPEDelayOptimizer.guaranteed(space, 20, **fixed(norm_bound=2.0, noise_std=0.1))


ON_BOTH = {
    "BPE": lambda space: bd.BPEDelayOptimizer(space, 20),
    "UCB": lambda space: bd.AcquisitionOptimizer(space, **fixed()),
    "random": lambda space: bd.RandomOptimizer(space, **fixed()),
    "ThreDS": threds,
}
ON_SETS = {
    "as published": published,
    "guaranteed": guaranteed,
    "queued": lambda space: bd.QueuedOptimizer(bd.RandomOptimizer(space, **fixed())),
}
MADE = [(name, box, make) for name, make in ON_BOTH.items()]
MADE += [(name, grid, make) for name, make in (ON_BOTH | ON_SETS).items()]


def value_of(params):
    return params["layers"] / 6 + (params["act"] == "relu") - math.log10(params["dose"]) ** 2


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize(("name", "space", "make"), MADE, ids=lambda value: str(value)[:12])
def test_parameters_go_out_and_come_in_and_the_space_is_in_the_file(tmp_path, name, space, make):
    space = space()
    opt = make(space)
    for _ in range(2):
        for trial in opt.ask(2):
            assert trial.params.keys() == space.parameters.keys()
            assert opt.domain.point(trial.params).tolist() == trial.x.tolist()
            assert feasible(trial.params)
            opt.tell(trial, value_of(trial.params))
    opt.attach(opt.trials[0].params, 1.5)
    assert torch.equal(opt.attached[0].x, opt.trials[0].x)
    trial = opt.ask()
    best = opt.recommend()
    assert best.params == opt.domain.params(best.x)
    assert pickle.loads(pickle.dumps(trial)).params == trial.params
    assert copy.deepcopy(opt).trials[-1].params == trial.params

    opt.save(tmp_path / "study.db")
    parts = {} if opt.domain.count is not None else {"feasible": feasible}
    again = bd.load(tmp_path / "study.db", **parts)
    assert [t.params for t in again.trials] == [t.params for t in opt.trials]
    assert again.recommend().params == best.params
    assert again.domain.columns == space.domain.columns
    asked = again.ask().params
    assert asked == opt.ask().params
    fresh = make(space)
    fresh.load_state_dict(opt.state_dict())
    assert fresh.trials[-1].params == asked
    json.dumps(opt.state_dict()["config"])


@pytest.mark.usefixtures("small_searches")
def test_what_is_asked_of_a_box_satisfies_what_is_known():
    for opt in (bd.RandomOptimizer(box()), bd.BPEDelayOptimizer(box(), 20)):
        for trial in opt.ask(20):
            assert satisfies(trial.params), trial.params
    assert all(map(satisfies, opt.domain.table(opt.active_set.sample(30))))


def test_feasible_is_given_again_and_another_space_is_refused(tmp_path):
    bd.RandomOptimizer(box()).save(tmp_path / "study.db")
    with pytest.raises(StorageError, match=r"bd\.load\(path, feasible="):
        bd.load(tmp_path / "study.db")
    with pytest.raises(StorageError, match="another test of feasibility"):
        bd.load(tmp_path / "study.db", feasible=lambda params: params["layers"] > 2)
    state = bd.RandomOptimizer(bd.Space(c=bd.Choice(["a", "b"]))).state_dict()
    with pytest.raises(StorageError, match=r"space.*'b'.*'c'"):
        bd.RandomOptimizer(bd.Space(c=bd.Choice(["a", "c"]))).load_state_dict(state)


def test_attached_results_have_noise_variances_of_their_own(tmp_path):
    rows = [{"layers": 2, "act": "relu", "dose": 10.0}, {"layers": 3, "act": "tanh", "dose": 1.0}]
    opt = bd.BPEDelayOptimizer(grid(), horizon=9)
    opt.attach(rows[0], 1.0, 0.04)
    opt.attach(rows, [1.0, 2.0], 0.25)
    opt.attach(rows, [1.0, 2.0], np.array([[0.5], [math.nan]]))
    opt.save(tmp_path / "study.db")
    for run in (opt, bd.load(tmp_path / "study.db")):
        assert [r.noise_var for r in run.attached] == [0.04, 0.25, 0.25, 0.5, None]
    table = [row["noise_var"] for row in opt.table()]
    assert table == [0.04, 0.25, 0.25, 0.5, None]
    for wrong, error, message in (
        ([0.1], InputError, "noise_var must have shape 2 or 2 x 1, got 1 values"),
        ([0.1, 0.0], InputError, "noise_var must be above 0"),
        ([0.1, "x"], InputTypeError, "noise_var must be a number"),
        ("x", InputTypeError, "noise_var must be a list"),
    ):
        with pytest.raises(error, match=message):
            opt.attach(rows, [1.0, 2.0], wrong)
    assert len(opt.attached) == 5
    exact = bd.BPEDelayOptimizer(grid(), horizon=9, exact=True)
    with pytest.raises(InputError, match="exact, without noise; leave out noise_var"):
        exact.attach(rows[0], 1.0, 0.04)


def test_a_result_with_a_small_noise_variance_weighs_more():
    means = []
    for noise_var in (1e-4, 1.0):
        opt = bd.AcquisitionOptimizer(
            bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double)),
            covar_module=se(0.3),
            noise_var=0.1,
        )
        opt.attach(torch.tensor([0.5]).double(), 1.0, noise_var)
        means.append(opt.predict(torch.tensor([[0.5]]).double()).mean.item())
    assert means == pytest.approx([1.0 / 1.0001, 0.5])


def test_many_results_are_attached_at_once():
    rows = [{"layers": 2, "act": "relu", "dose": 10.0}, {"layers": 3, "act": "tanh", "dose": 1.0}]
    opt, expected = bd.RandomOptimizer(grid()), bd.RandomOptimizer(grid())
    for row, value in zip(rows, (1.0, 2.0), strict=True):
        expected.attach(row, value)
    points = torch.stack([opt.domain.point(row) for row in rows])
    for x, y in (
        (rows, [1.0, 2.0]),
        (rows, np.array([1.0, 2.0])),
        (points.numpy(), (1, 2)),
        (points.numpy()[::-1][::-1], np.array([[1.0], [2.0]])),
        (points, torch.tensor([1.0, 2.0]).double()),
    ):
        opt = bd.RandomOptimizer(grid())
        opt.attach(x, y)
        assert [(a.x.tolist(), a.value) for a in opt.attached] == [
            (a.x.tolist(), a.value) for a in expected.attached
        ]
    assert torch.equal(opt.predict(points.numpy()).mean, opt.predict(rows).mean)
    with pytest.raises(InputTypeError, match="a NumPy array of numbers"):
        opt.attach(np.array([["a", "b"]]), [1.0])
    for y, message in (
        ([1.0, math.nan], r"y\[1\] must be finite, got nan"),
        ([1.0], "y must have shape 2 or 2 x 1"),
        (1.0, "y must be a list, an array or a tensor of 2 values for 2 points, got float"),
        (
            np.array(1.0),
            "y must be a list, an array or a tensor of 2 values for 2 points, got ndarray",
        ),
        (torch.tensor([1.0, math.nan]).double(), "must be finite, got nan"),
    ):
        with pytest.raises(InputError, match=message):
            opt.attach(rows, y)
    known = len(opt.attached)
    with pytest.raises(InputError, match=r"x\[1\]: act must be one of .* got 'Tanh'"):
        opt.attach([rows[0], rows[1] | {"act": "Tanh"}], [1.0, 2.0])
    assert len(opt.attached) == known


def test_a_slip_among_attached_results_is_warned_of():
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Float(0, 1)))
    doses = [{"dose": place / 10} for place in range(10)]
    values = [0.1 * place for place in range(9)] + [7000.0]
    with pytest.warns(OutlierWarning, match=r"attached result 9, 7000, .* call detach\(9\)"):
        opt.attach(doses, values)
    opt.detach(9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.attach(doses[:2], [0.85, 0.9])
    with pytest.warns(OutlierWarning, match="attached result 12"):
        opt.attach(doses[0], -900.0)


def test_what_is_attached_is_checked_by_name():
    opt = bd.RandomOptimizer(grid())
    good = {"layers": 9, "act": "relu", "dose": 3.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            OutsideWarning, match="layers = 9 is none of 1, 2, 3, 4, 5, 6; the near"
        ):
            opt.attach(good, 1.0)  # off the grid, as attached results may be
    # The result counts, as the warning says, even where the warning is raised as an error.
    assert opt.domain.params(opt.attached[0].x) == good
    for wrong, message in (
        ({"layers": "3"}, "layers must be a whole number, got '3'"),
        ({"layers": True}, "layers must be a whole number, got True"),
        ({"dose": 0.0}, "dose must be above 0"),
        ({"dose": math.nan}, "dose must be finite"),
        ({"dose": 1e300}, "x lies too far outside of the domain: dose = 1e\\+300"),
        ({"act": "gelu"}, "act must be one of"),
        ({"width": 3}, r"\['width'\] unknown"),
    ):
        with pytest.raises(InputError, match=message):
            opt.attach(good | wrong, 1.0)
    with pytest.raises(InputTypeError, match=r"torch\.Tensor, a NumPy array of numbers, a dict"):
        opt.attach([3, "relu", 1.0], 1.0)
    beside = opt.ask().x.index_fill(0, torch.tensor(1), 7.0)
    with pytest.raises(InputError, match=r"column 1 \(act\).*got 7\. Or pass a dict"):
        opt.attach(beside, 1.0)
    assert len(opt.attached) == 1


def test_tensors_work_as_before():
    points = torch.tensor([[0.0, 2.0], [1.0, 3.0]], dtype=torch.double)
    opt = bd.RandomOptimizer(bd.FiniteDomain(points, names=["a", "b"]))
    trial = opt.ask()
    assert trial.params == dict(zip("ab", trial.x.tolist(), strict=True))
    with pytest.warns(OutsideWarning, match="a = 0.5 is none of 0, 1"):
        opt.attach({"a": 0.5, "b": 9.0}, 1.0)
    assert opt.attached[0].x.tolist() == [0.5, 9.0]


@pytest.mark.parametrize("options", some(["abc", "abcdef"], 1))
def test_the_best_option_is_found_if_first_asks_were_at_others(options):
    space = bd.Space(
        x=bd.Float(0, 1), y=bd.Float(0, 1), z=bd.Int(1, 8), option=bd.Choice(list(options))
    )
    opt = bd.BPEDelayOptimizer(space, horizon=32, seed=1)
    running = opt.ask(4)
    while running:
        trial = running.pop(0)
        x, y, z, option = trial.params.values()
        loss = 4 * (x - 0.3) ** 2 + 4 * (y - 0.6) ** 2 + 0.05 * (z - 5) ** 2
        opt.tell(trial, -loss - 0.3 * (option != options[-1]))
        if len(opt.trials) < opt.horizon:
            running.append(opt.ask())
    assert opt.recommend().params["option"] == options[-1]
