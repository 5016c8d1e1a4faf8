"""Other people's engines: each module needs the extra of the same name, and is imported by name.

There are two ways to drive an optimizer from an engine. Where the engine keeps trials in a storage
that several processes may share (Optuna, Ax), ``engine_run.EngineRun`` replays them: every ask
leaves a record with its trial, and the optimizer is made again from trials and records alone. Where
the engine saves and restores its searcher (Ray Tune), the searcher owns the optimizer and saves it.

A new engine needs a module here that turns its parameters into a ``domains.space.Space`` and its
trials into ``PastTrial`` or calls of ``tell``; an extra and a line in the import contracts of
``pyproject.toml``; its own step in ``.ci/run``; and tests as ``tests/integrations/test_ax.py`` has
them: the points of a seeded run, failures, several processes, and a run that goes on.
"""
