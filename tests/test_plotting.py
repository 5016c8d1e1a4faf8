import math
import sys
from functools import partial

import matplotlib as mpl
import pytest
import torch
from cases import line, normal, scattered, se

import botorch_delay as bd
from botorch_delay import plotting
from botorch_delay.benchmarks import FiniteProblem, simulate
from botorch_delay.exceptions import InputError, InputTypeError, MissingExtraError, NoAnswerError
from botorch_delay.runner import Evaluation, RunReport

mpl.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def played(dim=2, horizon=60, maximize=True):
    points = scattered(50, dim)
    problem = FiniteProblem(points, torch.sin(5 * points).sum(dim=1), 0.05)
    opt = bd.BPEDelayOptimizer(
        problem.domain, horizon, covar_module=se(0.5), noise_var=1e-3, maximize=maximize
    )
    return opt, simulate(opt, problem, bd.PoissonDelay(3.0), horizon)


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_regret_of_one_run_and_of_several():
    _, history = played()
    ax = plotting.plot_regret({"a": history})
    assert ax.lines[0].get_ydata()[-1] == history.regret[-1]
    other = played()[1]
    ax = plotting.plot_regret({"a": {1: history, 2: other}.values(), "b": history})
    assert labels(ax) == ["a", "b"]
    assert len(ax.collections) == 1  # the band of the repeats
    unequal = {"a": [history, played(horizon=30)[1]]}
    for bad in ({}, [history], {"a": []}, unequal, {"a": [1]}, {"a": played()[0]}, played()[0]):
        with pytest.raises(InputError):
            plotting.plot_regret(bad)


def test_what_cannot_be_drawn_is_refused():
    for draw in (
        plotting.plot_active_set,
        plotting.plot_rounds,
        plotting.plot_timeline,
        plotting.plot_best,
        plotting.plot_history,
        plotting.plot_slices,
        plotting.plot_parallel,
        plotting.plot_summary,
        partial(plotting.plot_posteriors, X=line(5)),
    ):
        with pytest.raises(InputTypeError, match=r"^(optimizer|report|model) must be .*, got None"):
            draw(None)


def test_long_runs_are_drawn_in_long_units():
    report = RunReport(evaluations=[Evaluation(0, "a", 0.0, 5 * 86400.0)])
    ax = plotting.plot_timeline(report)
    assert ax.get_xlabel() == "days"
    assert ax.patches[0].get_width() == 5.0
    assert plotting.plot_timeline(report, start=-86400.0).patches[0].get_x() == 1.0


@pytest.mark.parametrize("dim", [1, 2])
def test_active_sets_show_what_each_round_took_out(dim):
    opt, _ = played(dim)
    ax = plotting.plot_active_set(opt)
    assert ax.get_xlabel() == "x0"
    shown = labels(ax)
    assert "active" in shown
    assert "recommended" in shown
    for number in set(opt.active_set.eliminated.tolist()) - {0}:
        assert f"out in round {number}" in shown
    rounds = sorted(set(opt.active_set.eliminated.tolist()))
    for number, drawn in zip(rounds, ax.collections, strict=False):
        points = opt.domain.points[opt.active_set.eliminated == number]
        assert drawn.get_offsets()[:, 0].tolist() == points[:, 0].tolist()
    fresh = bd.BPEDelayOptimizer(opt.domain, 10)
    assert labels(plotting.plot_active_set(fresh)) == ["active"]
    fresh.attach(opt.domain.points[:3], [0.0, 1.0, 2.0])
    ax = plotting.plot_active_set(fresh)
    assert labels(ax) == ["active", "answered", "recommended"]
    assert ax.collections[-2].get_offsets()[:, 0].tolist() == opt.domain.points[:3, 0].tolist()


def test_logarithms_are_drawn_as_such():
    points = torch.cartesian_prod(line(5).flatten(), 10.0 ** torch.linspace(-2, 1, 4).double())
    domain = bd.FiniteDomain(points, names=["heat", "dose"], log_dims=[1])
    opt = bd.BPEDelayOptimizer(domain, 8)
    opt.tell(opt.ask(), 1.0)
    ax = plotting.plot_active_set(opt)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("heat", "dose")
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")


def test_axes_have_the_user_s_names_units_and_values():
    space = bd.Space.grid(
        dose=bd.Choice([0.1, 1.0, 10.0], ordered=True, log=True, unit="mg/ml"),
        act=bd.Choice(["relu", "tanh"]),
    )
    opt = bd.BPEDelayOptimizer(space, 8)
    opt.tell(opt.ask(), 1.0)
    ax = plotting.plot_active_set(opt)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("dose (mg/ml)", "act")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0.1", "1", "10"]
    assert ax.get_xticks().tolist() == [0.1, 1.0, 10.0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["relu", "tanh"]


def test_active_sets_in_more_dimensions_are_refused_with_a_hint():
    with pytest.raises(InputError, match="plot_rounds"):
        plotting.plot_active_set(played(3)[0])


def test_rounds_show_the_number_of_active_points():
    opt, _ = played()
    ax = plotting.plot_rounds(opt)
    (drawn,) = [one for one in ax.lines if len(one.get_xdata()) > 2]
    assert drawn.get_xdata()[-1] == 60
    assert drawn.get_ydata()[0] == 50
    assert drawn.get_ydata()[-1] == opt.rounds[-1].active_after
    ticks = ax.get_yticks().tolist()
    assert max(ticks) == 50  # where it began
    assert min(ticks) == opt.rounds[-1].active_after  # and where it ends
    plotting.plot_rounds(bd.BPEDelayOptimizer(opt.domain, 10))


@pytest.mark.parametrize("delay", [1, 12])
def test_rounds_are_shaded_for_as_long_as_they_waited(delay):
    domain = bd.FiniteDomain(scattered(50))
    options = {"covar_module": se(0.5), "noise_var": 1e-3, "explore_fraction": 0.1}
    opt, trials = bd.BPEDelayOptimizer(domain, 200, **options), []
    for asked in range(200):
        trials.append(opt.ask())
        if asked + 1 >= delay:
            opt.tell(trials[asked + 1 - delay], 0.0)
    ax = plotting.plot_rounds(opt)
    shaded = [patch.get_width() for patch in ax.patches]
    extra = [record.extra_asks for record in opt.rounds]
    assert any(extra) is (delay > 1)
    assert shaded == [count for count in extra if count]


def test_the_timeline_of_workers():
    report = RunReport(
        evaluations=[
            Evaluation(0, "a", 10.0, 12.0),
            Evaluation(2, "b", 10.5, 13.0, "RuntimeError"),
            Evaluation(1, "a", 12.0, 14.0),
        ]
    )
    ax = plotting.plot_timeline(report)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["worker 1", "worker 2"]
    drawn = sorted((p.get_x(), p.get_width(), round(p.get_y() + 0.35)) for p in ax.patches)
    assert drawn == [(0.0, 2.0, 0), (0.5, 2.5, 1), (2.0, 2.0, 0)]
    assert labels(ax) == ["completed", "failed"]
    assert report.out_of_order == 1
    assert report.utilization == pytest.approx(6.5 / 8.0)
    assert ax.get_xlim()[0] == 0.0
    plotting.plot_timeline(RunReport())


def mixed(maximize=True, answers=8):
    """A run on a box with every kind of column, with two trials in flight."""
    bounds = torch.tensor([[1e-4, 1.0, 0.0, 0.0], [1e-1, 6.0, 2.0, 1.0]], dtype=torch.double)
    lists = {"discrete_dims": {1: [1, 2, 6]}, "cat_dims": {2: [0, 1, 2]}}
    names = ["rate", "layers", "kind", "drop"]
    box = bd.BoxDomain(bounds, **lists, names=names, log_dims=[0])
    opt = bd.RandomOptimizer(box, horizon=20, maximize=maximize)
    for trial in opt.ask(answers + 2)[:answers]:
        opt.tell(trial, trial.x.sum().item())
    return opt


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("maximize", [True, False])
def test_the_history_of_a_run(maximize):
    opt = mixed(maximize, answers=0)
    opt.attach(torch.tensor([0.01, 2.0, 1.0, 0.5], dtype=torch.double), 0.0)
    opt.ask(8)
    for trial in opt.trials[:8]:
        opt.tell(trial, trial.x.sum().item())
    opt.mark_failed(9)
    opt.ask(2)
    top, bottom = plotting.plot_history(opt)
    assert {text.get_text() for text in top.get_legend().get_texts()} == {
        *("answer", "attached", "best so far", "failed (no value)")
    }
    opt.mark_abandoned(opt.ask())
    again, _ = plotting.plot_history(opt)
    assert again.collections[-1].get_label() == "abandoned (no value)"
    assert again.collections[-1].get_offsets()[:, 0].tolist() == [13.0]
    best = torch.as_tensor(top.lines[0].get_ydata())
    assert (best[0], top.lines[0].get_xdata()[0]) == (0.0, 2.0)  # attached after two asks
    extreme = max if maximize else min
    assert best[-1] == extreme([0.0, *(t.value for t in opt.trials if t.value is not None)])
    assert top.collections[0].get_offsets()[:, 0].tolist() == [10.0] * 8  # when they came
    heights = bottom.collections[0].get_paths()[0].vertices
    assert heights[:, 1].max() == 10.0  # all before the first answer
    assert heights[heights[:, 0] > 11.6][:, 1].max() == 3.0
    assert plotting.plot_history(mixed(answers=1), (top, bottom)) == [top, bottom]


def test_the_history_ends_with_what_is_running():
    opt = mixed(answers=4)  # and two running
    for trial in opt.ask(3):
        opt.mark_failed(trial)
    opt.tell(5, 0.0)
    heights = plotting.plot_history(opt)[1].collections[0].get_paths()[0].vertices
    assert heights[heights[:, 0] > 9.6][:, 1].max() == len(opt.pending) == 1
    assert heights[:, 0].max() == 10.0  # nine asks and their end


def test_the_history_of_attached_results_alone():
    opt = mixed(answers=0)
    fresh = bd.RandomOptimizer(opt.domain)
    fresh.attach(torch.tensor([0.01, 2.0, 1.0, 0.5], dtype=torch.double), 0.0)
    top, bottom = plotting.plot_history(fresh)
    assert labels(top) == ["attached", "best so far"]
    assert bottom.get_ylim() == (0.0, 1.05)
    assert all(tick == round(tick) for tick in bottom.get_yticks())


@pytest.mark.parametrize("maximize", [True, False])
def test_slices_show_what_is_expected_in_the_user_s_units(maximize):
    opt = mixed(maximize)
    axes = plotting.plot_slices(opt)
    assert [ax.get_xlabel() for ax in axes] == ["rate", "layers", "kind", "drop"]
    assert [ax.get_xscale() for ax in axes] == ["log", "linear", "linear", "linear"]
    assert [text.get_text() for text in axes[1].get_xticklabels()] == ["1", "2", "6"]
    best = opt.recommend()
    curve = axes[3].lines[0]
    places = torch.as_tensor(curve.get_xdata())
    X = best.x.repeat(len(places), 1)
    X[:, 3] = places
    found = opt.predict(X)
    assert torch.as_tensor(curve.get_ydata()).tolist() == found.mean.tolist()
    band = axes[3].collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(found.lower.min().item())
    assert band.max() == pytest.approx(found.upper.max().item())
    assert axes[3].lines[1].get_xdata()[0] == best.x[3]


def test_columns_of_a_space_have_its_names_units_and_values():
    space = bd.Space(
        rate=bd.Float(1e-4, 1e-1, log=True, unit="1/s"),
        kind=bd.Choice(["relu", "tanh", "a very long name of another"]),
    )
    opt = bd.RandomOptimizer(space, horizon=5)
    for trial in opt.ask(4):
        opt.tell(trial, trial.params["rate"])
    rate, kind = plotting.plot_slices(opt)
    assert (rate.get_xlabel(), kind.get_xlabel()) == ("rate (1/s)", "kind")
    words = ["relu", "tanh", "a very l…another"]
    assert [text.get_text() for text in kind.get_xticklabels()] == words
    assert kind.get_xlim() == (-0.5, 2.5)
    written = {text.get_text() for text in plotting.plot_parallel(opt).texts}
    assert {*words, "0.0001", "0.1"} <= written
    alike = ["catalyst-2024-A-final", "catalyst-2025-A-final"]
    opt = bd.RandomOptimizer(bd.Space(rate=bd.Float(0, 1), kind=bd.Choice(alike)), horizon=5)
    opt.tell(opt.ask(), 0.0)
    kind = plotting.plot_slices(opt)[1]
    assert [text.get_text() for text in kind.get_xticklabels()] == alike


def test_slices_say_where_no_interval_is_known():
    opt = bd.RandomOptimizer(bd.Space(rate=bd.Float(0, 1), n=bd.Int(1, 6)), horizon=9)
    for number in range(3):
        opt.tell(opt.ask(), float(number))
        written = [text.get_text() for ax in plotting.plot_slices(opt) for text in ax.texts]
        assert written == ["interval unbounded so far"] * 2 * (number < 2)


def test_slices_cut_wide_intervals():
    opt = bd.RandomOptimizer(bd.Space(rate=bd.Float(0, 1), n=bd.Int(1, 6)), horizon=9)
    for value in (0.0, 1.0, 0.2):
        opt.tell(opt.ask(), value)
    axes = plotting.plot_slices(opt)
    assert axes[0].collections[0].get_paths()[0].vertices[:, 1].max() > 2.0
    for ax in axes:
        bottom, top = ax.get_ylim()
        assert -0.5 <= bottom < 0.0 < 1.0 < top <= 1.5


def test_lines_through_all_columns():
    opt = mixed()
    ax = plotting.plot_parallel(opt)
    assert ax.get_ylim() == (-0.05, 1.05)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["rate", "layers", "kind", "drop"]
    drawn = ax.collections[0]
    assert drawn.get_array().tolist() == sorted(t.value for t in opt.trials[:8])  # the best on top
    heights = torch.tensor([segment[:, 1].tolist() for segment in drawn.get_segments()])
    assert ((heights >= 0.0) & (heights <= 1.0)).all()
    kinds = {t.value: t.x[2].item() for t in opt.trials[:8]}
    assert heights[:, 2].tolist() == [kinds[v] / 2 for v in sorted(kinds)]
    written = {text.get_text() for text in ax.texts}
    assert {"0.0001", "0.1", "1", "2", "6"} <= written


def test_a_line_through_one_column_is_refused_with_a_hint():
    with pytest.raises(InputError, match="plot_slices"):
        plotting.plot_parallel(played(1)[0])


def test_lines_that_leave_a_column_are_cut():
    opt = mixed()
    opt.attach(torch.tensor([1e-9, 2.0, 1.0, 40.0], dtype=torch.double), 0.5)
    ax = plotting.plot_parallel(opt)
    assert ax.get_ylim() == (-0.05, 1.05)
    lines, below, above = ax.collections[:3]
    heights = torch.tensor([segment[:, 1].tolist() for segment in lines.get_segments()])
    assert (heights.min(dim=0).values == -0.05).tolist() == [True, False, False, False]
    assert (heights.max(dim=0).values == 1.05).tolist() == [False, False, False, True]
    assert below.get_offsets().tolist() == [[0.0, -0.05]]
    assert above.get_offsets().tolist() == [[3.0, 1.05]]


def test_long_names_and_units_are_shortened_or_broken_into_lines():
    space = bd.Space(
        {
            "the temperature of the bath": bd.Float(0, 1, unit="degrees of Fahrenheit"),
            "dose": bd.Float(0, 1, unit="mg/ml"),
        }
    )
    opt = bd.RandomOptimizer(space, horizon=5)
    opt.tell(opt.ask(), 0.0)
    names = ["the temp…he bath\n(degrees …renheit)", "dose (mg/ml)"]
    assert [ax.get_xlabel() for ax in plotting.plot_slices(opt)] == names
    ticks = plotting.plot_parallel(opt).get_xticklabels()
    assert [text.get_text() for text in ticks] == names
    alike = [f"the temperature of bath {number} in the morning" for number in range(2)]
    opt = bd.RandomOptimizer(bd.Space({name: bd.Float(0, 1) for name in alike}), horizon=5)
    opt.tell(opt.ask(), 0.0)
    broken = [ax.get_xlabel() for ax in plotting.plot_slices(opt)]
    assert [text.replace("\n", " ") for text in broken] == alike
    assert max(len(line) for text in broken for line in text.splitlines()) <= 20


def test_a_summary_of_few_answers_and_of_none():
    assert len(plotting.plot_summary(mixed(answers=1)).axes) == 2 + 4 + 2
    assert len(plotting.plot_summary(played()[0]).axes) == 2 + 2
    for draw in (plotting.plot_history, plotting.plot_slices, plotting.plot_parallel):
        with pytest.raises(NoAnswerError, match="no answer yet to draw"):
            draw(mixed(answers=0))


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_so_far_only_improves(maximize):
    opt = played(maximize=maximize)[0]
    ax = plotting.plot_best(opt)
    best = ax.lines[0].get_ydata()
    steps = torch.as_tensor(best).diff() * (1 if maximize else -1)
    assert (steps >= 0).all()
    assert ax.get_xlim()[0] <= 0.0
    with pytest.raises(NoAnswerError, match="no answer yet to draw"):
        plotting.plot_best(bd.BPEDelayOptimizer(opt.domain, 5))


def test_an_answer_in_the_place_of_a_failure_is_drawn_when_it_came():
    opt = bd.RandomOptimizer(bd.FiniteDomain(line(30)))
    failed = opt.ask()
    opt.mark_failed(failed)
    for _ in range(4):
        opt.tell(opt.ask(), 0.0)
    opt.correct(failed, 5.0)
    top, _ = plotting.plot_history(opt)
    assert top.collections[0].get_offsets()[0].tolist() == [5.0, 5.0]
    assert top.lines[0].get_ydata()[0] == 0.0
    ax = plotting.plot_best(opt, start=0.0)
    values = ax.collections[0].get_offsets()[:, 1]
    assert values.tolist() == [0.0] * 4 + [5.0]
    assert ax.lines[0].get_ydata().tolist() == [0.0] * 4 + [5.0]


def test_both_posteriors_are_drawn():
    X = line(4)
    model = bd.DelayedGP(
        X, normal(4).unsqueeze(-1), noise_var=1e-2, X_pending=X[:2] + 0.1, covar_module=se(0.2)
    )
    shown = labels(plotting.plot_posteriors(model, line(30)))
    assert any("observed" in label for label in shown)
    assert any("fantasy" in label for label in shown)
    assert {"answered", "pending"} <= set(shown)
    prior = bd.DelayedGP(X[:0], X[:0], noise_var=1e-2, covar_module=se(0.2))
    plotting.plot_posteriors(prior, line(30))
    flat = scattered(4)
    with pytest.raises(InputError, match="one column"):
        plotting.plot_posteriors(bd.DelayedGP(flat, flat[:, :1], noise_var=1.0), flat)


def test_certificates_are_drawn_for_several_norms_but_those_that_are_refuted():
    opt = bd.AcquisitionOptimizer(
        bd.FiniteDomain(line(30)),
        covar_module=se(),
        noise_var=0.01,
        rule=bd.CertifyingUCB(2.0, 0.1),
    )
    for _ in range(12):  # twice the kernel at one point: norm 2
        trial = opt.ask()
        opt.tell(trial, 2.0 * float(torch.exp(-0.5 / 0.4**2 * (trial.x[0] - 0.3) ** 2)))
    ax = plotting.plot_certificates(opt, 2.0, 0.1, factors=(0.25, 1.0))
    small, right = (drawn.get_ydata() for drawn in ax.get_lines())
    assert right[-1] == pytest.approx(opt.certify(2.0, 0.1).regret)
    assert not any(map(math.isfinite, small))
    assert all(map(math.isfinite, right))
    least = opt.certify(2.0, 0.1).norm_at_least
    assert ax.get_legend().get_title().get_text() == f"least norm not refuted: {least:.3g}"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["norm 0.5", "norm 2"]


def test_a_line_of_certificates_ends_at_its_first_refutation():
    opt = bd.RandomOptimizer(bd.FiniteDomain(line(400)), covar_module=se(), noise_var=0.01)
    early = opt.ask(8)
    for trial in early:
        opt.tell(trial, (9.0 * trial.x).sin().item())
    last = opt.ask(152)[-1]
    opt.tell(last, (9.0 * last.x).sin().item())  # the noise bound now allows for 160 asks
    past, now = opt.certify(2.0, 0.1, asks=8), opt.certify(2.0, 0.1)
    assert past.refuted
    assert not now.refuted
    ax = plotting.plot_certificates(opt, 2.0, 0.1, factors=(1.0, 2.0))
    ended, whole = (drawn.get_xdata().tolist() for drawn in ax.lines)
    assert (ended, whole[-1]) == ([4], 160)
    assert ax.get_legend().get_title().get_text() == (
        f"least norm not refuted: {past.norm_at_least:.3g}"
    )


def test_axes_of_one_s_own_are_used():
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    assert plotting.plot_regret({"a": played()[1]}, ax=ax) is ax


def test_axes_are_given_for_every_picture_in_any_shape():
    import matplotlib.pyplot as plt

    opt, _ = played(horizon=10)
    square = plt.subplots(1, 2, squeeze=False)[1]
    assert plotting.plot_slices(opt, square) == plotting.plot_history(opt, square) == [*square[0]]
    for axes in (square[0, 0], [*square[0], square[0, 0]], [], [1, 2]):
        for draw in (plotting.plot_slices, plotting.plot_history):
            with pytest.raises(InputTypeError, match="axes must be 2 Axes of Matplotlib, got "):
                draw(opt, axes)


def test_arguments_of_other_types_are_refused():
    opt, history = played()
    with pytest.raises(InputError, match="factors must have at least one"):
        plotting.plot_certificates(opt, 1.0, 0.1, factors=())
    for call, name in (
        (lambda: plotting.plot_regret({"a": history}, ax=5), "ax"),
        (lambda: plotting.plot_best(opt, ax=5), "ax"),
        (lambda: plotting.plot_best(opt, start="a"), "start"),
        (lambda: plotting.plot_timeline(RunReport(), start="a"), "start"),
        (lambda: plotting.plot_certificates(opt, "a", 0.1), "norm_bound"),
    ):
        with pytest.raises(InputTypeError, match=f"{name} must be"):
            call()


def test_without_matplotlib_there_is_a_hint(monkeypatch):
    opt, history = played()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for call in (
        lambda: plotting.plot_regret({"a": history}),
        lambda: plotting.plot_active_set(opt),
        lambda: plotting.plot_rounds(opt),
        lambda: plotting.plot_timeline(RunReport()),
        lambda: plotting.plot_best(opt),
        lambda: plotting.plot_parallel(opt),
        lambda: plotting.plot_summary(opt),
    ):
        with pytest.raises(MissingExtraError, match="pip install 'matplotlib"):
            call()


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("columns", [1, 2])
def test_active_sets_and_rounds_of_a_box(columns):
    bounds = torch.tensor([[1e-3, 0.0], [1.0, 2.0]], dtype=torch.double)[:, :columns]
    lists = {1: [0, 1, 2]} if columns == 2 else None
    domain = bd.BoxDomain(bounds, cat_dims=lists, log_dims=[0])
    opt = bd.BPEDelayOptimizer(domain, 20, covar_module=se(0.3), noise_var=1e-2)
    for _ in range(20):
        trial = opt.ask()
        opt.tell(trial, -((trial.x[0].log() + 3) ** 2).item())
    assert opt.rounds[-1].active_after < 1.0
    ax = plotting.plot_active_set(opt)
    assert ax.get_xlabel() == "x0"
    assert ax.get_xscale() == "log"
    assert len(ax.get_legend().get_texts()) >= 3
    ax = plotting.plot_rounds(opt)
    assert ax.get_ylabel() == "active share of the box (logarithmic)"


def test_what_may_not_be_asked_is_blank():
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    box = bd.BoxDomain(bounds, feasible=lambda X: X[:, 0] > 0.5)
    drawn = plotting.plot_active_set(bd.BPEDelayOptimizer(box, 10))
    (cells,) = drawn.collections
    assert len(cells.get_offsets()) == 100 * 50
    assert cells.get_offsets()[:, 0].min() > 0.5
    assert labels(drawn) == ["active"]


@pytest.mark.parametrize("names", [["a", "b"], ["alpha particles", "beta decay", "gamma rays"]])
def test_a_legend_is_within_the_picture_and_clear_of_labels(names):
    space = bd.Space(kind=bd.Choice(names), x=bd.Float(0, 1))
    opt = bd.BPEDelayOptimizer(space, 9, seed=1)
    opt.tell(opt.ask(), 1.0)
    ax = plotting.plot_active_set(opt)
    ax.figure.canvas.draw()
    legend, labels = ax.get_legend().get_window_extent(), ax.xaxis.get_tightbbox()
    assert 0.0 <= legend.y0 < legend.y1 <= labels.y0 + 1.0
