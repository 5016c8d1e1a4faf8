"""Integrations with engines of other libraries; each module needs the extra of the same name.

All of them use ``engine_run.EngineRun``: the engine keeps the record of every ask with its trial,
and from trials and records alone any process can rebuild the same optimizer.

A new engine needs a module here that translates its parameters into a ``domains.space.Space``, and
makes an ``EngineRun`` of that and of ``Settings``, which holds the user's options of the optimizer
(all but ``maximize``, as the engine knows the direction). Its public class derives from
``Readable``, which offers what users read. Every trial has a unique number. For every ask::

    run = EngineRun(name, space, Settings(horizon, seed, options), maximize)  # once
    run.take_in(past)  # trials that are new or have changed, in any order
    record = run.ask(number)  # for the engine to keep with the trial
    params = run.params(run.point(record))

Later ``past`` has ``run.past_ask(record, TrialState.COMPLETED, value)``, or for a trial without a
record of this run (``record_of``) ``run.past_result(number, params, value)``. Without a value the
state is FAILED, or ABANDONED if the point is free again. An abandoned trial may still end in
another way. Every process then counts it as abandoned first if the record of an ask says so: that
of an ask made meanwhile by a process that knew of it. A value counts once its trial is completed;
if the engine changes it later, make a new run. ``optimizer``, ``recommend`` and
``guarantee`` are as of the last ``take_in``. Numbers increase in the order of creation, and trials
in ``run.ended`` need not be handed over again. If ``run.replica.trial(number)`` is not None, the
trial has its point already: use its record. If the engine could not keep a record, call
``run.replica.forget(number)``, and the trial can ask again. The engine sets ``stopped_early`` if it
stopped trials because of their values. Executors need no module here: they are for ``runner.run``
(``executors.make_pool``).

Besides the module, add: an extra and a line in the import contracts of ``pyproject.toml``, the same
requirement in ``validation.REQUIREMENTS`` (for ``validation.missing``), versions in
``.ci/constraints.txt``, the name in ``.ci/api.py``, ``tests/test_exports.py`` and
``tests/readme_blocks.py``, a driver in ``tests/integrations/test_engines.py``, a guide and a row in
the README; and a step in ``.ci/run`` if it pins other versions.
"""
