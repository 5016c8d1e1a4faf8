"""Bayesian optimisation when results come back late (BPE-Delay, ICML 2023).

A name is imported with its module when it is first used, as BoTorch's are: importing the package
takes no longer than importing BoTorch.

For maintainers: the rooms of the package, from the top down. A module imports from its own room
and from those below, which the import contracts of ``pyproject.toml`` make law.

* ``integrations`` (``engine_run.EngineRun`` keeps an optimizer in step with an engine's trials),
  ``benchmarks`` (``simulator.simulate``), and beside this file what people use: ``runner.run``
  (executors), ``study``, ``entries`` and ``cli`` (experiments that are not programs, and what
  people write of them), ``plotting``, ``demo``; ``acquisition.MaxVariance`` for BoTorch.
* ``optimizers``: ``run.Run``, a run as its events; ``reading.ReadableRun``, what it says;
  ``base.Optimizer``, ask and tell on top of both; ``bpe.BPEDelayOptimizer``, which decides what is
  asked, with ``round_sequence.RoundSequence`` (its rounds), ``maximizer.Maximizer`` (where the rule
  outside the design is largest), ``budget.Budget`` (what that may cost), ``certificate.certify``
  (how large the regret can have been) and ``audit.Audit`` (what is claimed after all that happened,
  under what ``assumptions.assumed`` says); ``rules.Rule``, ``rule_model.RuleModel``, what it sees,
  and ``pending.Pending``, how pending points enter that; ``config.BPEConfig``, its options,
  ``exploit.Exploit`` and ``exploit.WithinBudget`` two of their parts; ``run.Fitting``, the one
  surrogate in use; ``replica.Replica``, the same asks made again elsewhere; ``loading.load``.
* ``elimination``: ``open_round.OpenRound``, design points and what became of them;
  ``closing.close_round``, its end; ``rounds.RoundRecord``, what is kept of it, and
  ``rounds.round_lengths``, q_r and t_r; ``active_set.ActiveSet``, which is a
  ``finite_active_set.FiniteActiveSet`` or a ``box_active_set.BoxActiveSet``.
* ``confidence``: ``bounds.Confidence`` makes a ``bounds.HalfWidth`` of ``bounds.Evidence``, as
  ``bounds.RKHSConfidence`` does (Lemma 1, Theorem 1, and nets on boxes);
  ``anytime.Ellipsoids``, bounds from all answers, and one ``anytime.Ellipsoid`` that is kept up to
  date;
  ``guarantee.Guarantee``, ``information.information_gain``.
* ``design``: ``greedy.GreedyDesign``, ``box.BoxDesign``; ``ascent``: ``lowest_of_largest`` (ties),
  ``maximize`` (climbs on a box) and ``BoundClimb`` (what they climb).
* ``gp``: ``kernels.covariance``; ``factor.Factor``, of Cholesky, which grows at its end;
  ``posterior.Data``, answers averaged per point, and ``posterior.Posterior``, at any points;
  ``candidates.CandidatePosterior``, kept up to date on fixed ones; ``averages.Averages``, answers
  that come and go, or are drawn (``with_drawn_answers``); ``surrogate.Surrogate``, kernel, noise
  and units; where they are learned ``hyperparameters.fit``, ``warping.Warping``, of the values, and
  ``subset.representative``, the points that a posterior of very many is made of;
  ``sample_paths.PriorPaths``; ``delayed_gp.DelayedGP`` for BoTorch.
* ``history``: ``events.Event``, what a run is replayed from; ``trials.Trial`` and
  ``trials.Ledger``, the record; ``answers.Answers``, columns of the record;
  ``trials.TrialObserver``, what is told of each change; ``point_status.Feasibility``, failures
  and repeats; ``states.check_state`` and ``sqlite.save``, the file.
* ``domains``: ``space.Space``, named parameters, makes a ``finite.FiniteDomain`` or a
  ``box.BoxDomain``, whose ``columns.Columns`` is all that translates between names and numbers
  (``Domain.params`` and ``Domain.point``); ``parameters.Float``, ``parameters.Int`` and
  ``parameters.Choice``; ``tables.read_rows``, CSV files; ``devices.generator_for``, random
  numbers, and ``devices.sent``, copies to a device that are not waited for. Beside it ``delays``
  (laws; ``upper_bound`` is u_T), ``validation`` and ``exceptions``.

The way of an answer. ``Optimizer.tell`` checks it and makes an ``Event`` of it. ``Run._apply``,
through which a loaded file goes as well, enters it in the ``Ledger`` and hands the trial to every
``TrialObserver`` of the run: the ``Feasibility`` (may its point be asked again?), the
``RoundSequence`` (is its design point settled?), the ``RuleModel`` (whose ``Averages`` take it in),
the ``Audit`` and the ``Budget``. Two things are decided at once: whether the answers still fit
``norm_bound``, and after the last ask the end of the last round. All else waits for the next
``ask``, which calls ``BPEDelayOptimizer._choose``: it lets the ``Fitting`` learn kernel and noise
again if that is due. If the round is due, ``close_round`` makes bounds from its answers and returns
a ``RoundRecord`` and the ``ActiveSet`` that they leave; the record, and how the set differs from
the one before, are in an ``Event`` that is applied, and the next ``OpenRound`` begins. Only then a
point is chosen: one to be asked again, the next design point, or the point of the ``Maximizer``
(within the ``Budget``, if there is one). The ask is an ``Event`` too: applied, it opens the trial
in the ``Ledger``, takes its slot of the ``OpenRound``, whose design counts the point from then on,
and enters the point without a value in the ``RuleModel``'s posterior ``with_pending``. That is what
pending means; where points crowd a rule is played on values drawn for them. An answer to a round
that has closed changes nothing that was decided: the rule, recommendations, and with
``evidence="all"`` the bounds of later rounds use it. One that comes after its trial was abandoned
(``Trial.late``) goes the same way, but serves no design point (where evaluations are exact it
does). The ``Budget`` and certificates use both. A correction
(``Optimizer.correct``) goes the same way as an event of its own: every part counts the trial anew,
and what was decided with the old answer stays, which the ``Audit`` holds against the claim.

Words. A trial is *running* or *pending* until it is *settled*: answered, failed or abandoned. To
*tell* is to give a trial its answer, to *attach* to give a result that was never asked for here. A
*row* is a point's place in a finite set; a *key* names a point anywhere: its row, or -1, -2, ... in
the order in which points of a box are met. A *slot* is the place of a design point in its round.
What is *decided* becomes the data of an event, and what is *applied* changes the state; only the
first computes. A surrogate is *learned* or given; its units are those of ``Surrogate.standard``,
not those of the values. *Exact* evaluations have no noise.

To add a rule: first see whether ``rules.BotorchRule`` plays it already. Else a subclass of
``rules.Rule``, its name in ``part_records.py``; its arguments are attributes of the same names,
``costly`` and ``own_scale`` are set where they hold, and it sees a ``RuleModel``: the mean of
``answers``, the deviation of ``with_pending``. The best mean among answered points, for rules of
improvement, is ``model.answers.anywhere.mean(model.answers.anywhere.data.X).max()``, once
``len(model.answers.anywhere)`` is not 0 (with a given kernel the first asks come before any
answer); margins are shares of ``model.prior_deviation``; ``check_pending`` refuses ways for pending
points to enter that make no sense. In ``benchmarks.methods`` a line makes it a variant that the
benchmark compares. To add a confidence bound: a frozen dataclass in ``confidence/bounds.py`` whose
``fixed_design`` and ``adaptive`` make a ``HalfWidth`` of ``Evidence`` (``multiplier`` and ``slack``
suffice; answers are averages per point, and the spread of single ones is not among them; ``words``
are for those who read a recommendation), its name in ``part_records.py``; its ``assumptions`` are
what it claims under, an empty ``missing`` says that it is proved, ``holds_on_box`` and
``missing_on_box`` whether it is on a box, and with ``constants`` it can be used by
``exploit.WithinBudget``, whose own bounds from all answers are made of these two numbers.
To add a delay law: a subclass of ``delays.DelayLaw``, its name in ``part_records.py``. To add an
engine: see ``integrations``; to add an executor: ``workers.make_pool``. Names that users import are
listed in ``__init__.pyi`` and in ``tests/test_exports.py``, parts that files can hold in
``tests/optimizers/test_part_records.py``.
"""

import ast
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    __version__ = version("botorch-delay")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

# The module of every public name, as the stub beside this file imports them.
_HOME = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOME[name] == __name__:
        return import_module(f"{__name__}.{name}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
