"""Other people's engines: each module needs the extra of the same name, and is imported by name.

All of them go through ``engine_run.EngineRun``: every ask leaves a record with the engine's trial,
and from trials and records alone the optimizer is made again, in any process. What an engine says
of itself, ``optimizer``, ``recommend`` and ``guarantee``, comes from there.

A new engine needs a module here that turns its parameters into a ``domains.space.Space`` and makes
an ``EngineRun`` of it. For every ask, with a number of its own for each trial::

    run.replica.sync(past)  # trials that are new or have changed since, in any order
    record = run.ask(number)  # for the engine to keep with the trial
    params = run.params(run.point(record))

and later ``past`` has ``run.past_ask(record, TrialState.COMPLETED, value)``, or
``run.past_result(number, params, value)`` of a trial without a record; ``record_of`` tells whether
a record is of this run, and ``with_end`` gives a trial its end. ``optimizer``, ``recommend`` and
``guarantee`` are as of the last ``sync``. ``ended`` is kept by these calls; the engine adds trials
of which nothing will come, and sets ``stopped_early`` where trials were stopped for their values.
An engine that has no storage of its own, and an executor, need none of this: executors are for
``runner.run`` (``workers.make_pool``), loops for ask and tell.

Beside the module: an extra and a line in the import contracts of ``pyproject.toml``, and its
versions in ``.ci/constraints.txt``; its name in ``.ci/api.py``; a driver in
``tests/integrations/test_engines.py``, which says what every engine must do; its name in
``tests/test_exports.py`` and ``tests/readme_blocks.py``; a guide and a row in the README. Where it
pins other versions it needs a step of its own in ``.ci/run``.
"""
