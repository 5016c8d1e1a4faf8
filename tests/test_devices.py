"""Results on a CUDA device equal the CPU's; without one, a simulated device is used."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.optim import optimize_acqf
from cases import scattered, se, with_values
from gpytorch.kernels import MaternKernel
from objectives import quadratic

import botorch_delay as bd
from botorch_delay.domains.devices import moved, sent, sent_rows
from botorch_delay.exceptions import InputError, InputTypeError
from botorch_delay.runner import run

pytestmark = pytest.mark.cuda

NOISE = 1e-2
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def matern():
    return with_values(MaternKernel(nu=2.5), lengthscale=0.4)


def points(device, n=30):
    return bd.FiniteDomain(scattered(n).to(device))


def box(device):
    return bd.BoxDomain(UNIT.to(device))


# Modes that draw random numbers, or call libraries that do; the golden traces have the rest.
MODES = {
    "Thompson samples, Matern, set": lambda device: bd.AcquisitionOptimizer(
        points(device, 5_001),
        covar_module=matern().to(device),
        noise_var=NOISE,
        rule=bd.ThompsonSampling(),
    ),
    "Thompson samples, Matern, box": lambda device: bd.AcquisitionOptimizer(
        box(device),
        covar_module=matern().to(device),
        noise_var=NOISE,
        rule=bd.ThompsonSampling(),
    ),
    "BoTorch, analytic": lambda device: bd.AcquisitionOptimizer(
        points(device),
        covar_module=matern().to(device),
        noise_var=NOISE,
        rule=bd.BotorchRule(UpperConfidenceBound, beta=4.0),
    ),
    "BoTorch, samples": lambda device: bd.AcquisitionOptimizer(
        points(device),
        covar_module=matern().to(device),
        noise_var=NOISE,
        rule=qLogNoisyExpectedImprovement,
    ),
    "learned, warped": lambda device: bd.BPEDelayOptimizer(points(device), horizon=12),
    "random, box": lambda device: bd.RandomOptimizer(box(device), seed=3),
}


def asked(opt, n=4):
    """Points asked with two in flight."""
    running, found = [], []
    for _ in range(n):
        running.append(opt.ask())
        found.append(running[-1].x)
        if len(running) > 2:
            trial = running.pop(0)
            opt.tell(trial, quadratic(trial.x.cpu()))
    return torch.stack(found)


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_gives_the_same_asks_on_both(mode):
    there = asked(MODES[mode]("cuda"))
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.cpu(), asked(MODES[mode]("cpu")), rtol=1e-6, atol=1e-6)


def test_a_run_on_the_cpu_leaves_the_device_s_generator_alone():
    before = torch.cuda.get_rng_state()
    asked(MODES["BoTorch, samples"]("cpu"), 3)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.parametrize(("first", "then"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_study_moves_between_devices(tmp_path, first, then):
    options = {"covar_module": se().to(first), "noise_var": NOISE}
    opt = bd.BPEDelayOptimizer(points(first), 40, **options)
    asked(opt)
    opt.save(tmp_path / "study.db")
    moved = bd.load(tmp_path / "study.db", device=then)
    assert moved.domain.like.device.type == then
    assert [moved.ask().index for _ in range(4)] == [opt.ask().index for _ in range(4)]


def test_a_kernel_on_the_device_is_not_taken_for_a_study_on_the_cpu(tmp_path):
    kernel = se().cuda()
    opt = bd.BPEDelayOptimizer(points("cuda"), 40, covar_module=kernel, noise_var=NOISE)
    opt.save(tmp_path / "study.db")
    with pytest.raises(InputError, match="device="):
        bd.load(tmp_path / "study.db", covar_module=kernel)


def test_objectives_of_a_run_get_points_of_the_cpu():
    seen = []

    def objective(x):
        seen.append(x.device.type)
        return quadratic(x)

    opt = bd.BPEDelayOptimizer(points("cuda"), 8, covar_module=se().cuda(), noise_var=NOISE)
    with ThreadPoolExecutor(2) as pool:
        run(opt, objective, pool, 4, 2, progress=False)
    assert seen == ["cpu"] * 4
    assert opt.recommend().x.device.type == "cuda"


def test_an_acquisition_function_on_the_device():
    X = scattered(12)
    found = []
    for device in ("cpu", "cuda"):
        Y = (X - 0.3).square().sum(dim=1, keepdim=True).to(device)
        gp = bd.DelayedGP(
            X[:8].to(device),
            Y[:8],
            noise_var=NOISE,
            X_pending=X[8:].to(device),
            covar_module=se().to(device),
        )
        start = X[:2].unsqueeze(1).to(device)
        x, value = optimize_acqf(
            bd.MaxVariance(gp),
            UNIT.to(device),
            q=1,
            num_restarts=2,
            batch_initial_conditions=start,
            options={"maxiter": 20},
        )
        assert x.device.type == device
        found.append(value.item())
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_mask_of_feasible_points_may_lie_on_the_cpu():
    domain = bd.BoxDomain(UNIT.cuda(), feasible=lambda X: X.cpu()[:, 0] < 0.5)
    opt = bd.BPEDelayOptimizer(domain, 10, covar_module=se().cuda(), noise_var=NOISE)
    assert (asked(opt, 2)[:, 0] < 0.5).all()


def study(domain):
    return bd.BPEDelayOptimizer(domain, 10, covar_module=se().cuda(), noise_var=NOISE)


def gp():
    X = scattered(4).cuda()
    return bd.DelayedGP(X, X[:, :1], noise_var=NOISE, covar_module=se().cuda())


ENTRIES = {
    "attach": lambda X: study(points("cuda")).attach(X, X[:, 0]),
    "set, contains": lambda X: points("cuda").contains(X),
    "set, find": lambda X: points("cuda").find(X),
    "box, contains": lambda X: box("cuda").contains(X),
    "active points": lambda X: study(points("cuda")).active_set.contains(X),
    "active part of a box": lambda X: study(box("cuda")).active_set.contains(X),
    "posterior": lambda X: gp().posterior(X),
    "pending points": lambda X: gp().with_pending(X),
    "an answer": lambda X: gp().with_answer(X[0], 0.5),
    "acquisition function": lambda X: bd.MaxVariance(gp())(X.unsqueeze(1)),
    "information gain": lambda X: bd.information_gain(se().cuda(), X, NOISE),
    "design": lambda X: bd.greedy_max_variance(se().cuda(), X, NOISE, 2),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_points_on_the_wrong_device_are_refused_in_one_line(entry):
    with pytest.raises(InputTypeError, match=r"device|convert it with") as error:
        ENTRIES[entry](scattered(3))
    assert "\n" not in str(error.value)


def test_certificates_are_those_of_the_cpu():
    found = []
    for device in ("cpu", "cuda"):
        known = {"covar_module": se().to(device), "noise_var": NOISE}
        opt = bd.BPEDelayOptimizer.guaranteed(
            points(device), 14, norm_bound=2.0, noise_std=NOISE**0.5, **known
        )
        asked(opt, 8)
        told = opt.certificate
        found.append([told.regret, told.gap, told.norm_at_least, *told.recommended])
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def told(device, domain, **options):
    """A short run: what it says at its end."""
    kernel = se().to(device)
    opt = bd.BPEDelayOptimizer(domain(device), 14, covar_module=kernel, noise_var=NOISE, **options)
    asked(opt, 8)
    return opt


READINGS = {
    "recommend": lambda opt: opt.recommend().x,
    "predict": lambda opt: opt.predict(opt.domain.bounds).mean,
    "stopping_gap": lambda opt: torch.tensor(opt.stopping_gap()),
    "replicates": lambda opt: torch.stack([found.x for found in opt.replicates()]),
    "trials": lambda opt: torch.stack([trial.x for trial in opt.trials]),
    "active_set": lambda opt: opt.active_set.contains(opt.domain.bounds),
    "round_that_eliminated": lambda opt: opt.active_set.round_that_eliminated(
        opt.trials[0].x.unsqueeze(0)
    ),
    "table": lambda opt: torch.tensor([row["x0"] for row in opt.table()]),
    "deep copy": lambda opt: copy.deepcopy(opt).ask().x,
    "pickled trial": lambda opt: pickle.loads(pickle.dumps(opt.trials[0])).x,
}


@pytest.mark.parametrize("domain", [points, box])
def test_what_is_read_of_a_run_is_the_same(domain):
    runs = {device: told(device, domain) for device in ("cpu", "cuda")}
    for name, reading in READINGS.items():
        here, there = (reading(runs[device]) for device in ("cpu", "cuda"))
        torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-6, msg=name)
        assert there.device.type == ("cpu" if name in ("stopping_gap", "table") else "cuda"), name


def test_results_attached_and_taken_back():
    found = []
    for device in ("cpu", "cuda"):
        opt = told(device, box)
        X = scattered(3).to(device)
        opt.attach(X, X[:, 0])
        opt.detach(opt.attached[1])
        assert opt.attached[0].x.device.type == opt.detached[0].x.device.type == device
        found.append(opt.ask().x.cpu())
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_a_queue_and_an_edited_file(tmp_path):
    found = []
    for device in ("cpu", "cuda"):
        options = {"covar_module": se().to(device), "noise_var": NOISE}
        queued = bd.QueuedOptimizer(bd.AcquisitionOptimizer(points(device), **options))
        asked(queued, 6)
        path = tmp_path / f"{device}.db"
        queued.save(path)
        with bd.editing(path, device=device) as opt:
            found.append([opt.ask().index for _ in range(3)])
            assert opt.trials[-1].x.device.type == device
    assert found[0] == found[1]


def test_bounds_and_information_of_single_functions():
    X = scattered(12)
    found = []
    for device in ("cpu", "cuda"):
        kernel, there = se().to(device), X.to(device)
        bounds = bd.rkhs_bounds(
            *(kernel, there[:6], there[:6, 0], there),
            noise_var=NOISE,
            norm_bound=1.0,
            noise_std=0.1,
            delta=0.1,
        )
        known = kernel, there, NOISE
        numbers = torch.tensor([bd.information_gain(*known), bd.effective_dimension(*known)])
        found.append([*(end.cpu() for end in bounds), numbers])
    torch.testing.assert_close(found[1], found[0])


def test_a_benchmark_on_the_device():
    found = []
    for device in ("cpu", "cuda"):
        X = scattered(40).to(device)
        problem = bd.benchmarks.FiniteProblem(
            X, (6.0 * X).sin().sum(dim=1), 0.1, covar_module=se().to(device)
        )
        method = bd.benchmarks.METHODS["gp-bucb"]
        clock = bd.benchmarks.DELAYS["none"]
        optimizer = method.make(problem, clock, 8, 0)
        played = bd.benchmarks.simulate(optimizer, problem, clock, 8)
        found.append([ask.point for ask in played.asks])
    assert found[0] == found[1]


def test_a_copy_to_the_device_is_not_waited_for(device):
    if device is None:
        pytest.skip("only a simulated device counts")
    like = torch.zeros(2, dtype=torch.float32, device="cuda")
    device.clear()
    values, rows = sent([[1.0], [2.0]], like), sent_rows([3], like)
    moved_rows = moved(torch.arange(2), like.device)
    sent_points = sent(torch.ones(2, dtype=torch.double), like)
    assert device.count() == 0
    assert values.dtype is sent_points.dtype is torch.float32
    assert all(X.is_cuda for X in (values, rows, moved_rows, sent_points))
    assert sent(values, torch.zeros(1, dtype=torch.double)).tolist() == [[1.0], [2.0]]
    assert device.count() == 1  # copying to the CPU waits


def space(kind):
    return kind(a=bd.Float(0.0, 1.0, step=0.05), c=bd.Choice(["x", "y"]), n=bd.Int(1, 4))


DEFAULTS = {
    "BPE, space": lambda: bd.BPEDelayOptimizer(space(bd.Space), 30),
    "BPE, grid": lambda: bd.BPEDelayOptimizer(space(bd.Space.grid), 30),
    "qLogNEI, grid": lambda: bd.AcquisitionOptimizer(
        space(bd.Space.grid), rule=qLogNoisyExpectedImprovement
    ),
    "random": lambda: bd.RandomOptimizer(space(bd.Space)),
    "queued": lambda: bd.QueuedOptimizer(bd.AcquisitionOptimizer(space(bd.Space.grid))),
}


@pytest.mark.parametrize("make", DEFAULTS.values(), ids=DEFAULTS)
def test_a_default_device_is_where_the_points_of_a_space_lie_and_changes_nothing(make, tmp_path):
    found = {}
    for device in ("cpu", "cuda"):
        with torch.device(device):
            opt = make()
            assert opt.domain.like.device.type == device
            for trial in opt.ask(3)[:2]:
                opt.tell(trial, quadratic(trial.point))
            for _ in range(2):
                opt.tell(trial := opt.ask(), quadratic(trial.point))
            opt.attach({"a": 0.5, "c": "y", "n": 2}, 0.1)
            opt.save(tmp_path / f"{device}.db")
            loaded = bd.load(tmp_path / f"{device}.db", device=device)
            said = [opt.recommend().params, opt.predict(opt.trials[0].x[None]).mean.tolist()]
            assert torch.empty(0).device.type == device
            assert opt.ask().params == loaded.ask().params
        found[device] = [*said, *(trial.params for trial in opt.trials)]
    assert found["cpu"] == found["cuda"]


def test_trials_and_answers_are_kept_on_the_cpu():
    opt = bd.AcquisitionOptimizer(points("cuda"), covar_module=matern().cuda(), noise_var=NOISE)
    trial = opt.ask()
    assert trial.x.is_cuda
    assert trial.point.device.type == "cpu"


def test_asks_do_not_depend_on_the_default_dtype():
    def asks(dtype):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            ends = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
            opt = bd.BPEDelayOptimizer(bd.BoxDomain(ends), 14, seed=3)
            for _ in range(10):
                trial = opt.ask()
                opt.tell(trial, -float((trial.x - 0.3).square().sum()))
            return torch.stack([trial.x for trial in opt.trials])
        finally:
            torch.set_default_dtype(before)

    assert torch.equal(asks(torch.float32), asks(torch.double))
