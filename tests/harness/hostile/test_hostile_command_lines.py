"""Command lines that nobody means, outputs that cannot be written: one line, soon."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import covering
import pytest
import study_files
from damaging import at_most
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import ExitCode, LaunchError, command_line, main

DRAWN_HERE = "300" if covering.is_full() else "45"
NUM_CASES = int(os.environ.get("HOSTILE_COMMAND_LINES", DRAWN_HERE))
REFUSED_SEC = 5.0
"""For a refusal, on a busy machine; alone it takes a few hundredths of a second."""
PLANNED_SEC = 60.0
"""For a plan of up to 100,000 trials."""

MANY_DIGITS = "9" * 5000
NUMBERS = (
    *("nan", "-nan", "inf", "-inf", "infinity", "1e999", "-1e999", "1e-999", "1e400"),
    *("", " ", "0", "-0", "+1", "-1", "1", "2", "3", "1.5", "1e3", "0x10", "1_0"),
    *("9" * 30, MANY_DIGITS, f"-{MANY_DIGITS}", f"0.{MANY_DIGITS}", f"{MANY_DIGITS}."),
    *(str(2**31), str(2**53 + 1), str(2**63 - 1), str(2**63), str(2**64), str(10**9)),
    *("65536", "65537", "100000", "1000000", "\N{ARABIC-INDIC DIGIT THREE}", "²", "½"),
)
TEXTS = (
    *("", " ", ".", "..", "-", "--", "/", "~", "~no-user", "~nobody/x", "a" * 256),
    *("a" * 5000, "a" * 70_000, "../" * 2000, "a/" * 3000, "x" * 200, "%s%n", "{0}"),
    *("\0", "a\0b", "\ud800", "\udcff", "a\nb", "\r", "\t", "\x1b[31m", "\x7f", "\x85"),
    *("\N{RIGHT-TO-LEFT OVERRIDE}", "\u2028", "\N{PILE OF POO}" * 50, "$x^$", "[/red]"),
)
PATHS = ("loop", "loop/x", "file", "file/x", "dangling", "pipe", "runs", "runs/s", "no")
RANGES = (
    *("1..65536", "1..65537", "2..1", "1..", "..1", "1..1000000x2", "1..8x0", "1..8x1"),
    *(f"1..{MANY_DIGITS}", f"{MANY_DIGITS}..1", f"1..8x{MANY_DIGITS}", "1,2,,4", ","),
    *("1,2,3", "1,2", "1..4", "1..64x2", "7", "65536", "1 , 2", "1;2", "-1..4"),
    ",".join(map(str, range(1, 10_000))),
)
numbers = st.sampled_from(NUMBERS)
texts = st.sampled_from(TEXTS) | st.text(max_size=12)
paths = st.sampled_from(PATHS) | texts
anything = numbers | paths | st.sampled_from(RANGES)
studies = st.sampled_from(("s", "s", "s", "new")) | paths
"""Mostly one that there is, so that what comes after it is reached."""


def some(*values):
    return st.sampled_from(values) | texts


def both(form, *parts):
    return st.builds(form.format, *parts)


OPTIONS = some("learning_rate_per_256", "image_size", "cache_data", "num_epochs")
DATA = some("digits", "synthetic", "folder:", "cartpole:swingup", "imagenet2012:0.0")
BACKENDS = ("in_graph", "single", "tf_mirrored", "multi_worker", "in_graph,single", ",")
UNITS = st.sampled_from(("", "s", "min", "h", "%", "steps", "examples", "x"))
VALUES = {
    "--set": both("{}={}", some("rounds", "seed", "nodes", "pod-template"), anything),
    "--workload": some("resnet50", "sngan", "d4pg", "transformer", "keras_fit"),
    "--backends": some(*BACKENDS),
    "--preset": some("smoke", "laptop", "paper", "gpu"),
    "--data": DATA | both("folder:{}", paths) | both("{}:{}", texts, texts),
    "--option": both("{}={}", OPTIONS, anything) | texts,
    "--vary": both("{}={},{}", texts | st.just("data"), anything, anything),
    "--command": some("true {replicas}", "no-such {seed}", "{"),
    "--metric": some("throughput", "peak_memory", "top_1"),
    "--baseline": some("s", "HEAD", "main~1"),
    "--launcher": some("local", "slurm", "ray", "kubernetes", "slrum"),
    "--study": studies,
    "study": studies,
    "studies": studies,
    "command": some("list", "set", "show", "python3", "sweep"),
    # By what the help says of an option's value.
    "N": numbers,
    "COUNTS": st.sampled_from(RANGES) | numbers | texts,
    "WARMUP+MEASURED": both("{}+{}", numbers, numbers) | numbers,
    "PATH": paths,
    "FILE": paths,
    "file": paths,
}
"""By the name of an option or an argument; others have values of their kind."""
BASES = {
    "sweep": ("--workload=resnet50", "--preset=smoke"),
    "gate": ("--workload=resnet50", "--preset=smoke"),
}
WRITERS = ("sweep", "gate", "report", "launch")
DOCUMENTED = {*ExitCode} - {ExitCode.INTERNAL_FAULT}


def subcommands_in(group):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from (((name, *words), of) for words, of in subcommands_in(command))
        else:
            yield (name,), command


def values_of(param):
    """Returns what an option or argument may be given; None for a flag."""
    if isinstance(param, click.Option) and param.is_flag:
        return None
    for name in (*param.opts, str(param.name), param.metavar):
        if name in VALUES:
            return VALUES[name]
    choices = param.shell_complete(click.Context(command_line), "")
    if choices:
        return some(*(item.value for item in choices))
    return both("{}{}", numbers, UNITS) | anything


def is_inside(text):
    """Whether what is written to a path of this name stays in the current folder."""
    return not text.startswith(("/", "~")) and ".." not in text


PARAMS = {
    words: [param for param in command.params if "--help" not in param.opts]
    for words, command in subcommands_in(command_line)
}


@st.composite
def command_lines(draw):
    """A subcommand, a few of its options with odd values, and sometimes an odd
    argument.
    """
    words = draw(st.sampled_from(sorted(PARAMS)))
    params = PARAMS[words]
    chosen = draw(st.lists(st.sampled_from(params), max_size=5, unique_by=id))
    given = {name for param in chosen for name in param.opts}
    base = BASES.get(words[0], ())
    line = [*words, *(word for word in base if word.partition("=")[0] not in given)]
    required = [of for of in params if of.required and of not in chosen]
    for param in [*required, *chosen]:
        values = values_of(param)
        if values is not None and words[0] in WRITERS:
            values = values.filter(is_inside)
        if isinstance(param, click.Argument):
            line.append(draw(values))
        elif values is None:
            line.append(draw(st.sampled_from([*param.opts, *param.secondary_opts])))
        elif draw(st.booleans()) and param.opts[-1].startswith("--"):
            line.append(f"{param.opts[-1]}={draw(values)}")
        else:
            line += [draw(st.sampled_from(param.opts)), draw(values)]
    more = draw(st.lists(anything, max_size=1) | st.just([]) | st.just([]))
    return line + [text for text in more if is_inside(text)]


@pytest.fixture(scope="module")
def place(template, tmp_path_factory):
    """Makes a directory with a study and with everything that is no study in it."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(template / "runs", folder / "runs")
    (folder / "file").write_text("")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nothing")
    os.mkfifo(folder / "pipe")

    def refuse(*_, **__):
        raise ValueError("no environment is made in this test")

    def no_engine(*_, **__):
        raise LaunchError("no engine is asked in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # No trial starts, no process looks for MuJoCo, no figure is drawn, no machine
        # is timed, no engine is asked.
        patch.setattr("harness.run.sweep.run_trials", lambda *_: None)
        patch.setattr("harness.doctor.checks.diagnose", lambda **_: [])
        patch.setattr("harness.launch.slurm.run", no_engine)
        patch.setattr("harness.launch.kubernetes._run", no_engine)
        patch.setattr("harness.launch.ray.read_hosts", no_engine)
        patch.setattr("reports.site.build.pages", lambda *_, **__: {"a": "a page"})
        patch.setattr("workloads.d4pg.evaluator.EvaluatorClient", refuse)
        patch.setattr("reports.build_report", lambda *_, **__: "a page\n")
        yield folder


def listing(folder):
    """Returns everything below a folder; the lock of a study comes and goes."""
    return sorted(
        os.path.join(root, name)  # noqa: PTH118 - quicker, for thousands of cases
        for root, folders, files in os.walk(folder)
        for name in (*folders, *files)
        if not name.startswith(".lock")
    )


def run(arguments):
    out, err = io.StringIO(), io.StringIO()
    start = time.monotonic()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        at_most(2 * PLANNED_SEC),
    ):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue(), time.monotonic() - start


@covering.series
@settings(
    max_examples=NUM_CASES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(arguments=command_lines())
def test_no_command_line_ends_in_a_traceback(place, arguments):
    before = listing(place)
    code, out, err, seconds = run(arguments)
    after = listing(place)
    remove(set(after) - set(before))

    assert code in DOCUMENTED, err
    assert "Traceback" not in err
    assert "internal error" not in err
    assert set(before) <= set(after), "something was removed"
    if code == ExitCode.USAGE:
        *notes, last = err.splitlines()
        assert out == ""
        assert not [line for line in notes if not line.startswith(NOTES)], err
        assert last.startswith("error: ")
        assert len(last) < 2_000
        assert re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", last) is None
        assert before == after
        if seconds >= REFUSED_SEC:  # others may have had the processor meanwhile
            seconds = run(arguments)[3]
        assert seconds < REFUSED_SEC
    assert seconds < PLANNED_SEC


def remove(made):
    """Removes what a command has written, so that the next one finds the same."""
    for path in sorted(made):  # a folder before what is in it, also its lock
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)  # noqa: PTH108


NOTES = ("checking for about", "s: ")
"""What is said before a refusal that comes late."""


@pytest.mark.parametrize("words", sorted(PARAMS))
def test_an_option_that_may_not_repeat_is_given_once(harness, words):
    """Of two values neither is dropped in silence; a word and its opposite are two."""
    for param in PARAMS[words]:
        if isinstance(param, click.Option) and not param.multiple:
            text = "slurm" if "--launcher" in param.opts else "1"
            value = () if param.is_flag else (text,)
            names = [*param.opts, *param.secondary_opts]
            code, out, err = harness(*words, names[0], *value, names[-1], *value)

            assert (ExitCode.USAGE, "", 1) == (code, out, err.count("\n")), err
            assert re.match(r"error: --[a-z-]+ is given 2 times, and only one", err)


STUDY = study_files.published("d4pg")


@pytest.mark.processes
@pytest.mark.parametrize("subcommand", ["status {} --json", "list"])
def test_a_full_disk_behind_stdout_is_one_line(subcommand, tmp_path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *subcommand.format(STUDY).split()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert ExitCode.USAGE == done.returncode, done.stderr
    assert done.stderr == (
        "error: cannot write the output: No space left on device; free space, or"
        " redirect it\n"
    )
