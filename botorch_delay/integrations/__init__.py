"""Other people's engines: each module needs the extra of the same name, and is imported by name.

All of them go through ``engine_run.EngineRun``: every ask leaves a record with the engine's trial,
and from trials and records alone the optimizer is made again, in any process. What an engine says
of itself, ``optimizer``, ``recommend`` and ``guarantee``, comes from there.

A new engine needs a module here that turns its parameters into a ``domains.space.Space`` and hands
its trials, each with a number of its own, to ``own``, ``asked``, ``settled`` and ``result`` of an
``EngineRun``; an extra and a line in the import contracts of ``pyproject.toml``, and its versions
in ``.ci/constraints.txt``; its name in ``.ci/api.py``; a driver in
``tests/integrations/test_engines.py``, which says what every engine must do; and a guide. Where it
pins other versions it needs a step of its own in ``.ci/run``.
"""
