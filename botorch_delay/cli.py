"""The command line: ``botorch-delay``."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from botorch_delay import __version__

logger = logging.getLogger(__name__)

# What argparse must take for negative numbers, not options: -1, and also -1e-3, -inf, -0,5.
_NEGATIVE = re.compile(r"^-(\d+[.,]?\d*|[.,]\d+)(e[-+]?\d+)?$|^-(inf|nan)", re.IGNORECASE)

_SUITES = {
    "quick": "draws of Gaussian processes, a minute or two",
    "boxes": "test functions and real trainings on boxes with 4, 16 and 64 workers, kept for tests",
    "boxes-development": "other functions and trainings, on which to choose defaults",
    "coco": "functions of COCO with real and integer parameters, also with noise",
    "hpo": "real tuning tables with 4, 16 and 64 workers",
    "paper": "the experiments of the paper, as in reproduce",
    "list": "print the names of all problems, delays and methods",
}

# Control characters: in names, notes and reasons that others wrote they could steer a terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# In the library's messages, advice for Python alone is cut out, and calls are shown as commands.
_PYTHON = re.compile(r"; for a study in a file: [^;]*(?=\.$)")
_CALL = re.compile(
    r"(?:opt\.)?\b(attach|correct|detach|extend|tell|mark_failed|mark_abandoned|recommend)\(([^()]*)\)"
)
_COMMANDS = {"mark_failed": "fail", "mark_abandoned": "abandon", "recommend": "show"}

Command = Callable[[argparse.Namespace], None]
Output = tuple[object, str]  # a command's output: JSON-ready for scripts, and as text
# Acts on an open study. It is handed ``study.py``, as importing that is too slow for --help.
Action = Callable[[argparse.Namespace, Any, Any], Output]

INTERRUPTED = 130  # the exit code after Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; every warning and every error is one line on stderr.

    Exit codes: 0 for success, 2 for unusable input, 1 for any other error, 130 after Ctrl-C.
    """
    try:
        return _run(argv)
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "command"):
        parser.print_help(sys.stderr)
        return 2
    from botorch_delay.exceptions import BotorchDelayError  # takes seconds: it imports PyTorch

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for stream in (sys.stdout, sys.stderr):
        # A terminal's encoding may lack a degree sign; surrogateescape prints odd file names as is.
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "surrogateescape":
            stream.reconfigure(errors="backslashreplace")
    shown = warnings.showwarning
    study = shlex.quote(str(getattr(arguments, "study", "STUDY")))
    warnings.showwarning = lambda said, *_: _complain(_in_commands(f"warning: {said}", study))
    try:
        arguments.command(arguments)
        if sys.stdout is not None:  # as after a shell's >&-
            sys.stdout.flush()
        return 0
    except BotorchDelayError as error:
        _complain(_in_commands(str(error), study))
        return 2
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except OSError as error:  # a full disk, a folder that may not be written to
        _complain(f"{error.strerror or error}: {error.filename or 'the output'}")
        return 1
    except Exception as error:
        logger.debug("%s", error, exc_info=True)
        what = f"{type(error).__name__}: {error}"
        _complain(f"this should not have happened, please report it: {what}")
        return 1
    finally:
        warnings.showwarning = shown


def _in_commands(message: str, study: str) -> str:
    """A message of the library, with commands in place of the Python calls that it names."""

    def command(call: re.Match[str]) -> str:
        name, given = call.groups()
        told = given.replace(",", "").upper().replace("NONE", "none")
        told = "VALUE NAME=VALUE ..." if name == "attach" else told
        return f"botorch-delay {_COMMANDS.get(name, name)} {study} {told}".rstrip()

    message = _PYTHON.sub("", message).replace("call ", "run ")
    return _CALL.sub(command, message).replace("opt.trials", f"botorch-delay export {study}")


def _complain(message: str) -> None:
    if sys.stderr is None:  # print would take None as standard output
        return
    print(f"botorch-delay: {_CONTROL.sub('?', ' '.join(message.split()))}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line, together with the right ones."""

    def error(self, message: str) -> None:  # type: ignore[override]  # exits, as the base does
        message = message.replace("invalid int value:", "expected a whole number, got")
        message = message.replace("invalid float value:", "expected a number, got")
        usage = " ".join(self.format_usage().split())
        self.exit(2, f"{self.prog}: {message} ({usage}; see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Let each subcommand refuse unknown arguments, so that the error shows its own options."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def _parser() -> argparse.ArgumentParser:
    text = "Bayesian optimisation when results come back late."
    parser = _Parser(prog="botorch-delay", description=text)
    parser.add_argument("--version", action="version", version=f"botorch-delay {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> _Parser:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.set_defaults(command=command)
        return added

    demo = add("demo", _demo, "tune a classifier on real data with late, out-of-order results")
    demo.add_argument("--workers", type=int, default=2, help="worker processes (default 2)")
    demo.add_argument("--trials", type=int, default=60, help="evaluations (default 60)")
    demo.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    demo.add_argument("--store", type=Path, help="a file to save to and resume from")
    demo.add_argument("--out", type=Path, help="a PNG file to draw to")
    demo.add_argument(
        "--race",
        type=int,
        metavar="SEEDS",
        help="race other methods on a simulated clock instead, SEEDS times (no --seed, --store)",
    )

    reproduce = add("reproduce", _reproduce, "repeat the paper's experiments, draw its figures")
    reproduce.add_argument(
        "--out", type=Path, default=Path("reproduction"), help="a folder (default: reproduction)"
    )
    reproduce.add_argument("--quick", action="store_true", help="a small version, in half a minute")
    reproduce.add_argument("--workers", type=int, help="processes (default: one per core)")

    suites = "; ".join(f"{name}: {words}" for name, words in _SUITES.items())
    bench = add("bench", _bench, "compare methods on problems with delays")
    bench.add_argument("suite", choices=list(_SUITES), help=suites)
    bench.add_argument("--out", type=Path, help="a folder (default: bench-SUITE)")
    for choice in ("problems", "delays", "methods"):
        text = "only these; see bench list"
        bench.add_argument(f"--{choice}", type=_names, metavar="NAME,NAME", help=text)
    text = "the first N seeds from 0, or the seeds from A to B"
    bench.add_argument("--seeds", type=_seeds, metavar="N or A-B", help=text)
    bench.add_argument("--steps", type=int, help="asks per run")
    bench.add_argument("--workers", type=int, help="processes (default: one per core)")

    _add_study_commands(add)
    return parser


def _add_study_commands(add: Callable[..., _Parser]) -> None:
    """Add the commands that work on a study in a file."""

    def of_study(name: str, command: Command, text: str) -> _Parser:
        added = add(name, command, text)
        added.add_argument("study", type=_study, help="the study's file")
        added.add_argument("--json", action="store_true", help="print JSON, for scripts")
        added._negative_number_matcher = _NEGATIVE
        return added

    def on_study(name: str, action: Action, text: str, *, edits: bool = True) -> _Parser:
        return of_study(name, partial(_on_study, action, edits), text)

    init = of_study("init", _init, "start a study in a new file")
    text = "a TOML file of parameters or arms; a line: parameters.rate = {low = 0.0, high = 5.0}"
    init.add_argument("--space", type=Path, required=True, help=text)
    init.add_argument("--horizon", type=int, required=True, help="how many trials are planned")
    text = "small results are good (default: large ones)"
    init.add_argument("--minimize", action="store_true", help=text)
    init.add_argument("--exact", action="store_true", help="no noise: never repeat settings")
    init.add_argument("--seed", type=int, default=0, help="random seed (default 0)")

    ask = on_study("ask", _ask, "which settings to try next")
    ask.add_argument("-n", type=int, default=1, help="how many (default 1)")

    tell = on_study("tell", _tell, "hand in the result of a trial, in any order")
    text = "report a trial whose settings may be why it failed; for an accident, see abandon"
    fail = on_study("fail", _fail, text)
    abandon = on_study(
        "abandon", _abandon, "give up a trial that is lost; its settings may be tried again"
    )
    correct = on_study("correct", _correct, "replace a result that was told wrongly")
    for settle in (tell, fail, abandon, correct):
        settle.add_argument("id", type=_id, help="the trial's id, as ask printed it")
    tell.add_argument("value", type=_result, help="its result")
    text = 'the right result; "none" if there is none'
    correct.add_argument("value", type=_result_or_none, help=text)

    attach = on_study("attach", _attach, "hand in a result that no trial asked for")
    attach.add_argument("value", type=_result, help="the result")
    attach.add_argument("settings", nargs="+", metavar="NAME=VALUE", help="each parameter once")
    for told in (tell, attach):
        text = "noise variance of the result (error bar squared), if known"
        told.add_argument("--noise-var", type=float, help=text)

    detach = on_study("detach", _detach, "take back a result that was attached")
    detach.add_argument("id", type=_id, help="the id of the attached result, as attach printed it")
    for amend in (fail, abandon, correct, detach):
        amend.add_argument("--reason", default="", help="why; kept in the study")

    extend = on_study("extend", _extend, "plan more trials")
    extend.add_argument(
        "horizon",
        nargs="?",
        type=int,
        help="how many in all, including those asked; leave it out to resume a finished study",
    )

    on_study("show", _show, "running trials, round and recommended settings", edits=False)
    note = on_study("note", _note, "add a line of text, which show prints")
    note.add_argument("text", nargs="+", help="the line")
    on_study("finish", _finish, "end the study: nothing is asked any more")

    text = "write every trial and attached result to a CSV file"
    export = on_study("export", _export, text, edits=False)
    text = "hand in the results of a CSV file: a column for each parameter and one for the value"
    for table in (export, on_study("import", _import, text)):
        table.add_argument("table", type=Path, help="a .csv file")
    plot = on_study("plot", _plot, "draw the results so far to a PNG file", edits=False)
    plot.add_argument("picture", type=Path, nargs="?", help="a .png file (default: STUDY.png)")


def _study(text: str) -> Path:
    if text.lower().endswith(".toml"):
        raise argparse.ArgumentTypeError(
            f"{text} describes a space and is not a study; make one with botorch-delay init STUDY "
            f"--space {shlex.quote(text)} --horizon N"
        )
    return Path(text)


def _id(text: str) -> int:
    if re.fullmatch(r"-?\d+", text) is None:
        raise argparse.ArgumentTypeError(
            f"expected the whole number that ask printed for a trial, got {text!r}"
        )
    return int(text)


def _result(text: str) -> float:
    from botorch_delay.exceptions import InputError
    from botorch_delay.results import read_number

    try:
        return read_number(text, "the result")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removesuffix(".")) from None


def _result_or_none(text: str) -> float | None:
    return None if text.lower() == "none" else _result(text)


def _demo(arguments: argparse.Namespace) -> None:
    from botorch_delay.demo.race import run_race
    from botorch_delay.demo.tuning import run_demo

    options = {"trials": arguments.trials, "workers": arguments.workers, "picture": arguments.out}
    if arguments.race is not None:
        print(run_race(seeds=arguments.race, **options))
    else:
        print(run_demo(seed=arguments.seed, store=arguments.store, **options))


def _reproduce(arguments: argparse.Namespace) -> None:
    from botorch_delay.benchmarks.paper import reproduce
    from botorch_delay.benchmarks.suites import PAPER, PAPER_QUICK

    suite = PAPER_QUICK if arguments.quick else PAPER
    print(reproduce(arguments.out, suite, workers=arguments.workers))


def _bench(arguments: argparse.Namespace) -> None:
    from botorch_delay.benchmarks.bench import bench
    from botorch_delay.benchmarks.suites import SUITES

    if arguments.suite == "list":
        _bench_list()
        return
    choices = ("problems", "delays", "methods", "seeds", "steps")
    chosen = {name: value for name in choices if (value := vars(arguments)[name]) is not None}
    folder = arguments.out or Path(f"bench-{arguments.suite}")
    suite = replace(SUITES[arguments.suite], **chosen)
    print(bench(suite, folder, workers=arguments.workers))


def _bench_list() -> None:
    from botorch_delay.benchmarks import DELAYS, METHODS, PROBLEMS
    from botorch_delay.benchmarks.functions import split_of

    for title, entries in (
        ("problems", {name: split_of(name) for name in PROBLEMS}),
        ("delays", DELAYS),
        ("methods", {name: method.label for name, method in METHODS.items()}),
    ):
        print(title, *(f"  {name:<34}{text}" for name, text in entries.items()), sep="\n")


def _names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _seeds(text: str) -> tuple[int, ...]:
    """``N`` seeds from 0, or those from A to B."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)", text)
    first, end = (int(found[1] or 0), int(found[2]) + bool(found[1])) if found else (0, 0)
    if not 1 <= end - first <= 100_000:
        raise argparse.ArgumentTypeError(
            f"expected a number of seeds, 1 to 100,000, or two ends such as 1000-1009; got {text!r}"
        )
    return tuple(range(first, end))


def _init(arguments: argparse.Namespace) -> None:
    from botorch_delay.exceptions import InputError
    from botorch_delay.optimizers.bpe import BPEDelayOptimizer
    from botorch_delay.study import format_space, read_space

    if arguments.study.exists():
        raise InputError(
            f"{arguments.study} exists already; choose another file, or go on with ask."
        )
    space = read_space(arguments.space)
    options = {"exact": arguments.exact, "seed": arguments.seed, "maximize": not arguments.minimize}
    BPEDelayOptimizer(space, arguments.horizon, **options).save(arguments.study)
    made = {"arms": space.domain.count, "units": space.domain.columns.units}
    named = shlex.quote(str(arguments.study))
    text = (
        f"{arguments.study}: {format_space(space)}\n"
        f"{arguments.horizon} trials are planned; next: botorch-delay ask {named}"
    )
    _print(arguments, made, text)


def _on_study(action: Action, edits: bool, arguments: argparse.Namespace) -> None:
    """Open the study, act on it, save it if the action ``edits``, and print what was done."""
    from botorch_delay import study
    from botorch_delay.optimizers.loading import editing, load

    opened = editing(arguments.study) if edits else nullcontext(load(arguments.study))
    with opened as optimizer:
        told = action(arguments, optimizer, study)
    _print(arguments, *told)


def _ask(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    trials = [study.describe_trial(trial) for trial in opt.ask(arguments.n)]
    hint = f"hand in results: botorch-delay tell {shlex.quote(str(arguments.study))} ID RESULT"
    return trials, f"{study.format_trials(trials, units=opt.domain.columns.units)}\n{hint}"


def _settle(
    call: Callable[[argparse.Namespace, Any], None],
    arguments: argparse.Namespace,
    opt: Any,
    study: Any,
) -> Output:
    """Call the optimizer to change one trial, and describe that trial."""
    call(arguments, opt)
    trial = opt.trials[arguments.id]
    return study.describe_trial(trial), study.format_settled(opt, trial)


_tell = partial(_settle, lambda of, opt: opt.tell(of.id, of.value, noise_var=of.noise_var))
_fail = partial(_settle, lambda of, opt: opt.mark_failed(of.id, of.reason))
_abandon = partial(_settle, lambda of, opt: opt.mark_abandoned(of.id, of.reason))
_correct = partial(_settle, lambda of, opt: opt.correct(of.id, of.value, of.reason))


def _attach(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    from botorch_delay.results import params_of

    settings = params_of(opt.domain, arguments.settings)
    opt.attach(settings, arguments.value, arguments.noise_var)
    result, count = opt.attached[-1], len(opt.attached)
    told = f"{arguments.value:.12g} at {opt.domain.words(result.x)} ({count} attached in all)"
    return {"id": result.id, "attached": count}, f"attached result {result.id}: {told}"


def _detach(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    opt.detach(arguments.id, arguments.reason)
    count = len(opt.attached)
    text = f"attached result {arguments.id} is taken back ({count} attached in all)"
    return {"attached": count}, text


def _extend(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    opt.extend(arguments.horizon)
    asked = len(opt.trials)
    text = f"{opt.horizon or 'any number of'} trials are planned now, {asked} of them asked so far"
    return {"horizon": opt.horizon, "asked": asked}, text


def _note(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    lines = study.add_note(opt, " ".join(arguments.text))
    return lines, f"noted ({len(lines)} in all); show repeats it"


def _finish(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    opt.finish()
    asked, running = len(opt.trials), len(opt.pending)
    text = (
        f"finished after {asked} trials, {running} of them still running: no more are asked, "
        "results can still be told, and show has the recommendation"
    )
    return {"asked": asked, "running": running}, text


def _import(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    from botorch_delay.results import import_results

    told, new, known = import_results(opt, arguments.table)
    text = f"{told} result{'' if told == 1 else 's'} of running trials told, " if told else ""
    text += f"{new} result{'' if new == 1 else 's'} attached"
    if known:
        text += f"; left out, as the study has them already: {known}"
    return {"told": told, "attached": new, "known": known}, text


def _show(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    described = study.describe_study(opt)
    return described, study.format_study(described)


def _export(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    from botorch_delay.results import write_results

    count = write_results(opt, arguments.table)
    return {"rows": count}, f"{arguments.table}: {count} trials and attached results"


def _plot(arguments: argparse.Namespace, opt: Any, study: Any) -> Output:
    from botorch_delay.exceptions import InputError
    from botorch_delay.plotting import plot_summary
    from botorch_delay.plotting.axes import check_picture, pyplot

    picture = arguments.picture or arguments.study.with_suffix(".png")
    check_picture(picture)
    drawn_by = "botorch-delay plot"
    foreign = picture.exists() and drawn_by.encode() not in picture.read_bytes()
    if foreign and arguments.picture is None:
        raise InputError(
            f"{picture} exists and was not drawn by this command; it was left as it is. Name the "
            f"picture: botorch-delay plot {shlex.quote(str(arguments.study))} PICTURE.png"
        )
    pyplot().switch_backend("Agg")  # no screen is needed
    plot_summary(opt).savefig(picture, dpi=110, metadata={"Software": drawn_by})
    return {"picture": str(picture)}, f"{picture}: the results so far"


def _print(arguments: argparse.Namespace, data: object, text: str) -> None:
    print(json.dumps(data, indent=2) if arguments.json else _CONTROL.sub("?", text))
