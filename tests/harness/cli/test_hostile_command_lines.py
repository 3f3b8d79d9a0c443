"""Command lines that nobody means: each ends in one line, soon, and writes nothing."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import time
from typing import TYPE_CHECKING, Any

import covering
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.cli import exit_codes
from harness.cli import main as cli
from reports.exports.export_formats import FORMATS
from results.records.limits import MAX_TRIALS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRAWN_HERE = "300" if covering.is_full() else "90"
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
DATA = ("digits", "synthetic", "folder:", "cartpole:swingup", "imagenet2012:0.0")

numbers = st.sampled_from(NUMBERS)
texts = st.sampled_from(TEXTS) | st.text(max_size=12)
paths = st.sampled_from(PATHS) | texts
anything = numbers | paths | st.sampled_from(RANGES)
names = texts | st.sampled_from(
    ("in_graph", "single", "tf_mirrored", "multi_worker", "in_graph,single", "ray", ",")
)
data = (
    st.sampled_from(DATA)
    | texts
    | st.builds("folder:{}".format, paths)
    | st.builds("{}:{}".format, texts, texts)
)
options = st.builds(
    "{}={}".format,
    st.sampled_from(
        ("learning_rate_per_256", "image_size", "version", "cache_data", "num_epochs")
    )
    | texts,
    anything,
)
REQUEST: dict[str, Any] = {
    "--file": paths,
    "--workload": st.sampled_from(("resnet50", "sngan", "d4pg", "keras_fit")) | texts,
    "--backends": names,
    "--replicas": st.sampled_from(RANGES) | numbers | texts,
    "--mode": st.sampled_from(("weak", "strong", "weak,strong", "weak,weak")) | texts,
    "--repeats": numbers,
    "--preset": st.sampled_from(("smoke", "laptop", "paper", "gpu")) | texts,
    "--data": data,
    "--data-dir": paths,
    "--per-replica-batch-size": numbers,
    "--global-batch-size": numbers | st.just("999999937"),
    "--num-warmup-steps": numbers,
    "--num-measured-steps": numbers,
    "--device": st.sampled_from(("cpu", "gpu")) | texts,
    "--budget": st.builds(
        "{}{}".format, numbers, st.sampled_from(("s", "h", "steps", "examples", "x"))
    )
    | texts,
    "--evaluations": numbers,
    "--quality-repeats": numbers,
    "--option": options | texts,
    "--seed": numbers,
    "--timeout": numbers,
    "--study": st.sampled_from(("s", "new")) | paths,
    "--runs-dir": paths,
    "--launcher": texts | st.sampled_from(("local", "slrum")),
    "--nodes": numbers,
    "--workers": numbers,
    "--replicas-per-worker": numbers,
    "--gpus-per-worker": numbers,
    "--partition": texts,
    "--time-limit": texts | numbers,
    "--array": numbers,
    "--shard": texts | st.sampled_from(("0/1", "1/0", "2/1", f"1/{MANY_DIGITS}")),
    "--evaluate": None,
    "--no-evaluate": None,
    "--json": None,
}
LISTS = ("workloads", "presets", "studies")
STUDY: dict[str, Any] = {"--runs-dir": paths, "--json": None}
VERBS: dict[str, dict[str, Any]] = {
    "plan": REQUEST,
    "sweep": {**REQUEST, "--retry": texts, "--keep-checkpoints": None},
    "status": STUDY,
    "report": {
        **STUDY,
        "-o": paths,
        "--format": st.sampled_from(sorted(FORMATS)) | texts,
        "--metric": st.sampled_from(("throughput", "peak_memory", "top_1")) | texts,
        "--references": st.sampled_from(("nvidia", "mlperf", "none")) | paths,
        "--allow-different": None,
        "--check-private": None,
    },
    "resume": {**STUDY, "--timeout": numbers, "--data-dir": paths, "--retry": texts},
    "list": {"--json": None, "--runs-dir": paths},
}


@st.composite
def command_lines(draw: Any) -> list[str]:
    """A verb, a few of its options with odd values, and sometimes an odd argument."""
    verb = draw(st.sampled_from(("plan", "plan", "sweep", "sweep", *VERBS)))
    line = [verb]
    if verb == "sweep":
        line.append("--dry-run")
    if VERBS[verb] is REQUEST or verb == "sweep":
        line += ["--workload=resnet50", "--preset=smoke"]
    elif verb == "list":
        line += draw(st.lists(st.sampled_from(LISTS) | texts))[:2]
    else:
        line.append(draw(st.just("s") | paths))
    chosen = draw(st.lists(st.sampled_from(sorted(VERBS[verb])), max_size=5))
    for name in chosen:
        values = VERBS[verb][name]
        if values is None:
            line.append(name)
        elif name.startswith("--") and draw(st.booleans()):
            line.append(f"{name}={draw(values)}")
        else:
            line += [name, draw(values)]
    return line + draw(st.lists(anything, max_size=1) | st.just([]) | st.just([]))


@pytest.fixture(scope="module")
def place(template: Path, tmp_path_factory: Any) -> Iterator[Path]:
    """Makes a directory with a study and with everything that is no study in it."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(template / "runs", folder / "runs")
    (folder / "file").write_text("")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nothing")
    os.mkfifo(folder / "pipe")

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no environment is made in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # No trial starts, no process looks for MuJoCo, no figure is drawn.
        patch.setattr("harness.run.sweep.run_trial", refuse)
        patch.setattr("workloads.d4pg.requirements._make_environment", refuse)
        patch.setattr("reports.page.build.build_report", lambda *_: "a page\n")
        yield folder


def listing(folder: Path) -> list[str]:
    """Returns everything below a folder; the lock of a study comes and goes."""
    return sorted(
        os.path.join(root, name)  # noqa: PTH118 - quicker, for thousands of cases
        for root, folders, files in os.walk(folder)
        for name in (*folders, *files)
        if not name.startswith(".lock")
    )


def run(arguments: list[str]) -> tuple[int, str, str, float]:
    """Returns exit code, stdout, stderr and seconds of a command line."""
    out, err = io.StringIO(), io.StringIO()
    start = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    return code, out.getvalue(), err.getvalue(), time.monotonic() - start


@settings(
    max_examples=NUM_CASES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(arguments=command_lines())
def test_no_command_line_ends_in_a_traceback(place: Path, arguments: list[str]) -> None:
    """Exit 2 is one line, at once, with nothing written; never an internal error.

    The full run draws more of them.
    """
    before = listing(place)
    code, out, err, seconds = run(arguments)

    assert code in {exit_codes.OK, exit_codes.USAGE, exit_codes.NOTHING_MEASURED}, err
    assert "Traceback" not in err
    assert "internal error" not in err
    if code == exit_codes.USAGE:
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("error: ")
        assert len(err) < 2_000
        assert re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", err[:-1]) is None
        assert before == listing(place)
        assert seconds < REFUSED_SEC
    assert seconds < PLANNED_SEC


HOSTILE = [
    (("--timeout=nan",), r"--timeout: 'nan' is not a duration; allowed are numb"),
    (("--timeout=1e300",), r"--timeout: '1e300' is not a duration; .* at most 1e\+09s"),
    (("--repeats", MANY_DIGITS), r"--repeats: '9{9}.* is not an integer from 1 to"),
    (("--seed", str(2**63)), r"--seed: .* is not an integer from 0 to"),
    (("--replicas", MANY_DIGITS), r"--replicas: '9+.* is more than 65536"),
    (("--replicas", f"1..{MANY_DIGITS}"), r"--replicas: '9+.* is more than 65536"),
    (("--replicas", f"2..8x{MANY_DIGITS}", "--repeats=0"), r"--repeats"),
    (("--budget", f"{MANY_DIGITS}s"), r"is not a budget; .* at most 1e\+15"),
    (
        ("--option", f"learning_rate_per_256={MANY_DIGITS}"),
        r"--option: learning_rate_per_256='9+.*is out of bounds; allowed are integers",
    ),
    (("--option", "num_epochs=nan"), r"num_epochs='nan' is out of bounds"),
    (("--data=folder:~no-user",), r"there is no home directory of '~no-user' here; wr"),
    (("--data=folder:loop",), r"data 'folder:loop': 'loop' is not a folder"),
    (("--data", f"folder:{'a' * 300}"), r"cannot use 'a+': File name too long"),
    (("--data-dir=loop",), r"--data-dir 'loop' is not a directory"),
    (("--runs-dir=loop",), r"cannot use 'loop': Too many levels of symbolic links; ch"),
    (("--runs-dir", "a" * 300), r"cannot use 'a+': File name too long; choose another"),
    (("--study=a\0b",), r"argument '--study=a\\x00b': '\\x00' is a control character"),
    (("--study=\udcff",), r"argument '--study=\\udcff': '\\udcff' is not UTF-8; use"),
    (("--study", "a" * 70_000), r"has 70000 characters; allowed are at most 65536"),
    (("--data", "digits" * 1000), r"': File name too long; choose another"),
    (
        ("--replicas=7", "--mode=strong", "--global-batch-size=999999937"),
        r"global batch 999999937 is not divisible by 7 .*or 1 replicas",
    ),
    (("--repeats=1000000",), rf"has \d{{7}} trials, .* at most {MAX_TRIALS}: use few"),
    (("--quality-repeats=1000000", "--budget=9steps"), r"has \d{7} trials, and each"),
    (
        ("--replicas=1..65536", "--mode=weak"),
        r"the sweep has 655360 trials, and each is a process; allowed are at most",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), HOSTILE)
def test_a_hostile_value_is_reported_in_one_line(
    harness: Any, tmp_path: Path, arguments: Any, message: str
) -> None:
    """Before anything is planned, made or written."""
    (tmp_path / "loop").symlink_to("loop")
    start = time.monotonic()
    code, out, err = harness(
        "sweep", "--workload=resnet50", "--preset=smoke", *arguments
    )

    assert (exit_codes.USAGE, "") == (code, out)
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert re.search(message, err), err
    assert ["loop"] == [path.name for path in tmp_path.iterdir()]
    assert time.monotonic() - start < REFUSED_SEC
