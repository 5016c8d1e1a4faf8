"""Bayesian optimisation when results come back late (BPE-Delay, ICML 2023).

Ask for settings whenever a worker is free, and tell results in the order in which they come::

    import botorch_delay as bd

    space = bd.Space(rate=bd.Float(1e-5, 1e-1, log=True), layers=bd.Int(1, 6))
    opt = bd.BPEDelayOptimizer(space, horizon=60, seed=0)
    first, second = opt.ask(2)
    opt.tell(second, score(**second.params))
    third = opt.ask()
    print(opt.recommend())

:class:`BPEDelayOptimizer` says what an optimizer can do. Points are searched in a :class:`Space` of
named parameters, or among tensors in a :class:`BoxDomain` or :class:`FiniteDomain`. ``runner.run``
evaluates a function on a pool of workers, :func:`load` and :func:`editing` resume from a file, and
``integrations`` has samplers for Optuna, Ray Tune and Ax. :class:`AcquisitionOptimizer` and others
are other methods with the same two calls; :class:`DelayedGP` and :class:`MaxVariance` are parts for
a loop of your own.

The rest of this page is for maintainers.

The map
-------
A name and its module are imported when the name is first used, so ``import botorch_delay`` loads
neither BoTorch nor PyTorch.

You ask an optimizer for a point and tell it the answer. A run is a list of *events* (asked,
completed, failed, round closed, ...). Whatever is *decided* is stored as the data of an event. Only
*applying* an event changes state, and applying decides nothing, so a file is loaded by applying its
events again. The events determine the *record* of trials, the *posterior* of a Gaussian process,
and for BPE-Delay the *rounds*: each asks design points, turns their answers into confidence bounds,
and eliminates points from the *active set*. All other asks maximise a *rule* (an acquisition
function) on that set; with a learned kernel, on the whole domain once the set is outdated. Points
live in a *domain*, a finite set or a box.

The rooms
---------
Listed from the top down. A module imports only from its own room and from those below it; the
import contracts in ``pyproject.toml`` enforce this.

* ``integrations``: Optuna, Ray Tune and Ax. ``engine_run.EngineRun`` keeps an optimizer in step
  with an engine's trials. Also above the optimizers are ``benchmarks`` (its clock and workers are
  simulated by ``simulator.simulate``) and the modules beside this file: ``runner.run`` drives an
  executor of ``executors``, whose worker processes load ``workers`` alone; ``study`` and ``cli``
  are for experiments that are not programs; ``plotting``; and ``demo``. Below the optimizers is
  ``acquisition.MaxVariance``, an acquisition function for BoTorch users.
* ``optimizers``: ask and tell.

  - A run: ``run.Run`` holds its events and applies them, also those read from a file;
    ``run.Fitting`` holds the one surrogate in use. ``reading.ReadableRun`` adds everything that can
    be read from a run without changing it, such as the recommended point; ``base.Optimizer`` adds
    ask and tell. ``replica.Replica`` rebuilds the same run from trials that another system stores.
    ``loading.load`` reads a file.
  - Choosing a point: ``bpe.BPEDelayOptimizer`` decides what is asked. It uses
    ``round_sequence.RoundSequence`` (its rounds), ``maximizer.Maximizer`` (where the rule for asks
    outside the design is largest) and ``budget.Budget`` (how much regret these asks may cost).
  - What a run says: ``recommendation.Recommendation`` and ``recommendation.Prediction``;
    ``recommendation.Judgement`` has the intervals that follow from all answers, and on a box also
    searches between the answered points.
  - Rules: ``rules.Rule`` scores points. It sees a ``rule_model.RuleModel``, in which pending points
    count as a ``pending.Pending`` says: by default ``pending.Hallucinate``, as if each had been
    answered by its own posterior mean, so that only the deviation there shrinks.
    ``knowledge_gradient`` chooses the last asks on a box.
  - Other optimizers with the same two calls: ``acquisition_optimizer.AcquisitionOptimizer``
    follows a rule without rounds; ``threds.ThreDSOptimizer``, ``queued.QueuedOptimizer`` and
    ``random.RandomOptimizer``. ``certifying.CertifyingUCB`` is the rule that keeps certificates
    small.
  - Stragglers: ``forecasts.Straggler`` and ``forecasts.Forecast`` describe what a round waits for;
    ``early_close`` says when it closes without the missing answers.
  - Claims: ``certificate.certify`` bounds the regret so far. ``audit.Audit`` says what is still
    claimed after everything that happened, on which assumptions, and why not more.
  - Options: ``config.BPEConfig``, with ``exploit.Exploit`` and ``exploit.WithinBudget`` as parts.

* ``elimination``: ``open_round.OpenRound`` has the design points of a round and what became of
  each. ``closing.close_round`` computes its ``rounds.RoundRecord`` and the active set that is left.
  ``round_sequence.RoundSequence.is_due`` says when to call it, ``.close`` does so, and
  ``.apply_close`` puts record and set in place. ``rounds.round_lengths`` gives the paper's q_r and
  t_r. An ``active_set.ActiveSet`` is an ``active_set.FiniteActiveSet`` or a
  ``box_active_set.BoxActiveSet``.
* ``confidence``: a ``bounds.Confidence`` turns ``bounds.Evidence`` into a ``bounds.HalfWidth``.
  ``bounds.RKHSConfidence`` is the proved one (Lemma 1, Theorem 1, and nets on boxes).
  ``anytime.Ellipsoids`` gives bounds from all answers, at any points;
  ``anytime.CandidateEllipsoids`` keeps them up to date at candidates. ``guarantee.Guarantee`` is
  what users read; ``information.information_gain`` is the paper's.
* ``design``: points where the deviation is largest. ``greedy.GreedyDesign`` works on finite sets,
  ``box.BoxDesign`` on boxes. ``ascent.lowest_of_largest`` breaks ties, and ``ascent.maximize``
  climbs an ``ascent.BoundClimb`` on a box.
* ``gp``: the Gaussian process.

  - Posteriors: ``posterior.Data`` holds answers averaged per point. ``posterior.Posterior`` is
    exact at any point, ``candidates.CandidatePosterior`` is kept up to date on fixed candidates
    (few with many answers: from their ``candidate_covariance.CandidateCovariance``).
    ``averages.Averages`` keeps posteriors while answers come and go, or are drawn for pending
    points (``with_drawn_answers``); its sums are exact, so the order of answers does not matter.
  - Linear algebra: ``kernels.covariance``, and ``factor.Factor``, a Cholesky factor to which rows
    are appended.
  - The model: ``surrogate.Surrogate`` is kernel, noise and units. If these are learned,
    ``fitting.fit_surrogate`` fits them (``hyperparameters.fit``, once for each ``warping.Warping``
    of the values that is compared), ``roughness.with_roughness`` tells noise from what repeats
    reproduce, ``marginal.marginal_deviation`` adds the uncertainty of the fit to intervals, and
    ``subset.representative`` picks the points to keep when there are very many.
  - Also ``sample_paths.PriorPaths`` for Thompson sampling, and ``delayed_gp.DelayedGP`` for BoTorch
    users.

* ``history``: ``events.Event`` is what a run is replayed from. ``trials.Ledger`` is the record of
  every ``trials.Trial``, and ``answers.Answers`` is that record as columns. A
  ``trials.TrialObserver`` is told of each change; ``point_status.Feasibility``, which tracks
  failures and repeats, is one. ``states.check_state`` checks a stored state, and ``sqlite.save``
  writes the file.
* ``domains``: ``space.Space``, named parameters, makes a ``finite.FiniteDomain`` or a
  ``box.BoxDomain``, each a ``domain.Domain``. Their ``columns.Columns`` does all translation
  between names and numbers (``Domain.params`` and ``Domain.point``); ``domain.Encoding`` is how a
  learned kernel sees points; ``domain.PointKeys`` tells points apart. The kinds of parameters
  are ``parameters.Float``, ``parameters.Int`` and ``parameters.Choice``;
  ``values.text_of`` writes values down, ``tables.read_table`` reads CSV files.
  ``devices.generator_for`` draws random numbers, and ``devices.sent`` copies to a device without
  waiting. Beside this room are ``delays`` (laws; ``upper_bound`` is u_T), ``validation`` and
  ``exceptions``.

The path of an answer
---------------------
1. ``Optimizer.tell`` checks the answer and makes an ``Event`` of it.
2. ``Run._apply``, which also applies the events of loaded files, enters it in the ``Ledger`` and
   hands the trial to every ``TrialObserver`` of the run: the ``Feasibility`` (may its point be
   asked again?), the ``RoundSequence`` (is its design point settled?), the ``RuleModel`` (whose
   ``Averages`` take it in), the ``Audit`` and the ``Budget``.
3. Two things are decided at once: whether the answers still fit ``norm_bound``, and, after the last
   ask, whether the last round ends. Everything else waits for the next ``ask``.
4. ``ask`` calls ``BPEDelayOptimizer._choose``. If a fit is due, the ``Fitting`` learns kernel and
   noise again.
5. If the round is due, ``close_round`` computes bounds from its answers. It returns a
   ``RoundRecord`` and the ``ActiveSet`` that remains. An ``Event`` stores the record and the
   difference from the set before; applying it begins the next ``OpenRound``.
6. Only then is a point chosen: one to be asked again, the next design point, or the point of the
   ``Maximizer`` (within the ``Budget``, if there is one; on the whole domain, if what a learned
   kernel has eliminated ``is_outdated``).
7. The ask is an ``Event``, too. When applied, it opens the trial in the ``Ledger``, takes its slot
   in the ``OpenRound``, whose design counts the point from then on, and adds the point without a
   value to the ``RuleModel``'s posterior ``with_pending``. That is what pending means. Where
   pending points crowd, a rule is maximised given values drawn for them.

Late and wrong answers: an answer that comes while its round is open serves its design point
(``OpenRound.settle``). One that comes after its round has closed changes nothing that was decided,
but the rule and recommendations use it, and with ``evidence="all"`` the bounds of later rounds.
The same holds for the answer to an abandoned trial (``Trial.came_back``), which never serves a
design point unless evaluations are exact. The ``Budget`` and certificates use both. A trial that
was marked as failed gets an answer by a correction (``Optimizer.correct``), an event of its own:
every part counts the trial anew. What was decided with the old answer stays, and the ``Audit``
holds that against the claim. After the last ask, answers are taken as before; once none is missing,
the last round closes.

Words
-----
A trial is *running* until it is *settled*: answered, failed or abandoned. A *pending* trial is a
running one; a rule's posterior counts the point of a failed one as pending, too. To *tell* is to
give a trial its answer; to *attach* is to give a result that this run never asked for. A *row* is a
point's index in a finite set. A *key* identifies a point anywhere: its row, or for points without
one -1, -2, ... in the order in which they are met first. A *slot* is the number of a design point
in its round. A surrogate is *learned* or *given*, and works in the units of ``Surrogate.standard``,
not in those of the values. *Exact* evaluations have no noise. A *list* is a finite set, or a space
where every parameter has a list of values (``Domain.is_discrete``).

How to add a part
-----------------
A rule (if ``rules.BotorchRule`` cannot use it), a confidence bound or a delay law is a subclass of
``rules.Rule``, ``bounds.Confidence`` or ``delays.DelayLaw``, whose methods and attributes say what
is expected. Make it a frozen dataclass with its arguments as attributes of the same names, and add
its name to ``part_records.py``. For an engine, see ``integrations``; for an executor,
``executors.make_pool``.

- A rule whose scores are values that f may take, such as a bound or a sample, sets
  ``scores_are_values``. A rule that takes long to compute sets ``costly``.
- A rule's margin of improvement is a share of ``model.prior_deviation``, as values have no fixed
  unit. With a given kernel, the first asks come before any answer: then ``best_mean`` is None.
- A confidence bound sees answers averaged per point, not their number or spread.
- Tests of a rule: a formula in ``tests/optimizers/test_rules.py``, and a case in
  ``test_every_optimizer.py`` (among the slow ones if learned on a box). One line in
  ``benchmarks.methods`` makes it a variant that the benchmark compares.

A new module needs a place in the layers of ``pyproject.toml``. Names that users import are listed
in ``__init__.pyi`` and in ``tests/test_exports.py``, parts that files can hold in
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

# The module of each public name, from the imports in the stub beside this file (or in a zip).
_HOME = {
    alias.name: node.module
    for node in ast.parse(__spec__.loader.get_data(str(Path(__file__).with_suffix(".pyi")))).body
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
