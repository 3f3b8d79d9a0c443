"""Any file that is read is damaged in any way: one line, or an answer; never a fault.

``DAMAGED_FILES`` sets how many files are damaged, ``HOSTILE_RECORDS`` how many studies,
whose records are damaged as JSON, too; ``make fuzz-records`` damages thousands.
``FAULTS_SEED`` draws others.
"""

import contextlib
import io
import json
import logging
import os
import random
import re
import shutil
import time
import traceback
import warnings

import covering
import damaging
import pytest
from command_lines import overridden, smoke_sweep
from damaging import Hung, at_most
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import reports
from harness import ExitCode, main
from harness.command.reader import MetricFile, ReadingError
from harness.machine import gpus
from reports import FORMATS, GATE_FORMATS
from results import (
    GateCase,
    GateRecord,
    Program,
    ResultsError,
    Store,
    TrialSpec,
    case_id,
    lock_study,
    opened,
    trial_id,
)
from results.judging import read_gate

pytestmark = pytest.mark.processes

NUM_FILES = int(os.environ.get("DAMAGED_FILES", "220" if covering.is_full() else "22"))
NUM_STUDIES = int(
    os.environ.get("HOSTILE_RECORDS", "24" if covering.is_full() else "3")
)
LONGEST_SEC = 30.0
CODES = {
    code
    for code in ExitCode
    if code not in (ExitCode.INTERNAL_FAULT, ExitCode.INTERRUPTED)
}
NOTES = ("error: ", "left out: ", "report: ", "note: ", "study ")


class Logged(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def run(*words, **overrides):
    """Runs a subcommand and checks what holds of any: no fault, no warning, lines,
    soon.
    """
    out, err, logged = io.StringIO(), io.StringIO(), Logged()
    start = time.monotonic()
    logging.getLogger("matplotlib").addHandler(logged)
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("always")
        # The code is that of whoever made the study.
        patch.setattr("harness.sources.code_digest.check_code", lambda *_, **__: None)
        with at_most(2 * LONGEST_SEC):
            code = main(words, run_overrides=FAILING | overrides)
    logging.getLogger("matplotlib").removeHandler(logged)
    logged.lines += [str(warning.message) for warning in warned]
    said = err.getvalue()

    assert "Traceback" not in said, said[-1500:]
    assert code in CODES, said[-1500:]
    assert logged.lines == []
    assert time.monotonic() - start < LONGEST_SEC
    if code == ExitCode.USAGE:
        assert said, words
        assert all(line.startswith(NOTES) for line in said.splitlines()), said
    return code, out.getvalue(), said


# Trials end at once.
FAILING = {"canary": lambda _: 0.2, "worker_command": ("false",)}
LEAVES = """
cp -R "$0"/rank_* "$0/first_exit.json" "$1"
grep -q '"repetition_index": *1' "$1/spec.json" && exit 1
grep -q '"repetition_index": *2' "$1/spec.json" && kill -KILL $$
exit 0
"""
SMALL = smoke_sweep("--backends=in_graph --replicas=1,2 --mode=weak --budget=none")
TOML = """
workload = "resnet50"
preset = "smoke"
replicas = "1,2"
mode = ["weak"]
repeats = 2
budget = "none"
time-budget = "5min"
[option]
image_size = 32
"""


GATE = GateRecord(
    verdict="regress", is_pass=False, headline="REGRESS: it is slower",
    metric="throughput", worse="slower", baseline="main", delta=0.05, alpha=0.05,
    exit_code=1, notes=("looked after 3 runs",), failures=("in_graph x2: lost",),
    cases=(
        GateCase(name="in_graph x1", backend="in_graph", verdict="regress",
                 slowdown=0.1, low=0.08, high=0.12, n=3),
        GateCase(name="bytes", backend="", verdict="regress", slowdown=0.5, n=2,
                 before=10.0, after=15.0),
        GateCase(name="in_graph x2", backend="in_graph", verdict="no verdict",
                 reason="no trial is ok"),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory, overrides, quick_sweeps):
    root = tmp_path_factory.mktemp("whole") / "place"
    root.mkdir()
    with quick_sweeps(root):
        for more in (
            ("--study=r", "--repeats=2", "--order=interleaved", "--set=rounds=3"),
            ("--study=v", "--repeats=1", "--order=sequential", "--no-match",
             "--vary=data=digits,synthetic"),
        ):  # fmt: skip
            code = main((*SMALL, *more), run_overrides=overrides)
            assert ExitCode.OK == code
    study = root / "runs" / "r"
    shutil.make_archive(str(root / "records"), "zip", root / "runs", "r")
    gate = Store(shutil.copytree(study, root / "runs" / "g"))
    plan = gate.read_plan()
    command = ("python", "-m", "harness", "gate")
    gate.write_plan(plan.model_copy(update={"command": command}))
    gate.write_listed("gate.json", GATE)
    (study / "report").mkdir(exist_ok=True)
    (study / "report" / "index.html").write_text("<p>a page of 12 numbers</p>\n")
    (study / ".lock-heartbeat").write_text("another 1 0123\n")
    (root / "study.toml").write_text(TOML)
    (root / "numbers.json").write_text('{"a": {"b": [1.5, 2]}}\n{"a": {"b": 3}}\n')
    (root / "numbers.csv").write_text("step,rate\n1,20.5\n2,21\n")
    note = root / "cuda"
    gpus.note_code(note, "9.0, driver 550, TensorFlow 2.21")
    trial = next(root.glob("runs/v/data-digits/trials/*"))
    shutil.copytree(trial, root / "trial")
    (root / "trial" / "first_exit.json").write_text('{"rank": 0, "reason": "lost"}')
    return root


def with_bytes(content):
    return lambda path: path.write_bytes(content)


def replacing(old, new):
    def replace(path):
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new))

    return replace


def all_discarded(path):
    for other in path.parents[1].glob("*/blocks.jsonl"):
        text = other.read_text()
        others = '"foreign_cpu_fraction": 0.9'
        other.write_text(re.sub(r'"foreign_cpu_fraction": [\d.]+', others, text))


def of_numbers(kind, key):
    """Reads the numbers of a program, as ``--metric`` does."""

    def read(path):
        with contextlib.suppress(ReadingError):
            metric = f"throughput={kind}:out:{key}"
            program = Program(command="own", metric=metric, unit="images")
            MetricFile(program, path).read()

    return read


def of_note(path):
    """Reads what was compiled for which GPUs, as ``doctor`` does."""
    gpus.noted_code(path.parent)


def of_gate(path):
    """Says what a gate concluded, in every format."""
    with contextlib.suppress(ResultsError):
        if record := read_gate(Store(path.parent)):
            assert all(write(record) for write in GATE_FORMATS.values())


def of_trial(path):
    """Concludes what trials have written that end with 0, with 1 or by a signal."""
    size = json.loads((path.parent / "spec.json").read_text())["num_replicas"]
    words = (f"--replicas={size}", "--order=sequential", "--repeats=3", "--no-match")
    worker = ("/bin/sh", "-c", LEAVES, str(path.parent))
    code, _, _ = run(*overridden(SMALL, *words), "--study=new", worker_command=worker)
    assert ExitCode.USAGE != code


READERS = {
    "observations": (
        "runs/r/trials/*/rank_0.jsonl",
        ("verify r", "report r --format zip -o r.zip", "status r"),
    ),
    "load within blocks": ("runs/r/trials/*/blocks.jsonl", ("status r",)),
    "load of blocks": (
        "runs/r/trials/*/blocks.jsonl",
        ("verify r", "report r --format zip -o r.zip"),
    ),
    "observations of a match": (
        "runs/r/match/trials/*/rank_0.jsonl",
        ("verify r", "status r"),
    ),
    "manifest": ("runs/r/SHA256SUMS", ("verify r", "report r --format zip -o r.zip")),
    "page": ("runs/r/report/index.html", ("verify r", "report r -o page.html")),
    "owner": (
        "runs/r/.lock-heartbeat",
        ("sweep --study r", "status r", "status r --json"),
    ),
    "parameter sweep": ("runs/v/vary.json", ("status v", "verify v", "list studies")),
    "records of a page": ("records.zip", ("verify records.zip",)),
    "what a gate concluded": (
        "runs/g/gate.json",
        (of_gate, "status g", "report g --format markdown"),
    ),
    "study file": ("study.toml", ("sweep --dry-run study.toml",)),
    "numbers in JSON": ("numbers.json", (of_numbers("json", "a.b"),)),
    "numbers in CSV": ("numbers.csv", (of_numbers("csv", "rate"),)),
    "note of compiled code": ("cuda/*", (of_note,)),
    "what a trial wrote": ("trial/rank_0.jsonl", (of_trial,)),
    "what ended first": ("trial/first_exit.json", (of_trial,)),
}  # fmt: skip


KNOWN = {
    "a column of 200 kB": ("numbers in CSV", with_bytes(b"rate\n" + b"9" * 200_000)),
    "a line that is a number": ("what a trial wrote", with_bytes(b"5\n")),
    "a loss beyond any float": (
        "what a trial wrote",
        with_bytes(b'{"kind": "gpu_canary", "tflops": [%s]}\n' % (b"9" * 400)),
    ),
    "a first exit of no rank": (
        "what ended first",
        with_bytes(b'{"rank": -5, "reason": ""}'),
    ),
    "a change of no variable": (
        "observations of a match",
        replacing(b'"name"', b'"x"'),
    ),
    "a change of no group": (
        "observations of a match",
        replacing(b'"group": "', b'"group": "x'),
    ),
    "blocks that are a link": (
        "load within blocks",
        lambda path: damaging.put(path, "loop"),
    ),
    "a block that is a list": ("load within blocks", with_bytes(b"[]\n")),
    "an owner without an end": ("owner", lambda path: damaging.put(path, "endless")),
    "no block that counts": ("load of blocks", all_discarded),
    "a count without what it was": (
        "what a gate concluded",
        replacing(b'"before": 10.0', b'"before": null'),
    ),
}
"""What once was a fault, or was waited for."""


@pytest.fixture
def read(whole, tmp_path, monkeypatch, show_page):
    """Returns what damages a file in a copy of all, and says how reading it failed."""
    show_page("<p>12</p>")
    place = tmp_path / "place"

    def fault_of(reader, path):
        try:
            if isinstance(reader, str):
                run(*reader.split())
            else:
                with at_most(LONGEST_SEC):
                    reader(path)
        except Hung:
            return [f"{reader}: it hangs"]
        except Exception:  # noqa: BLE001 - whatever it is, is a fault
            return [f"{reader}: {traceback.format_exc()[-1500:]}"]
        return []

    def read_all(name, damage):
        pattern, readers = READERS[name]
        shutil.copytree(whole, place)
        monkeypatch.chdir(place)
        if name == "load within blocks":  # which are read while they are written
            heartbeat = place / "runs/r/.lock-heartbeat"
            heartbeat.unlink()
            with lock_study(heartbeat.parent):
                owner = heartbeat.read_bytes()
            heartbeat.write_bytes(owner)
            for status in place.glob("runs/r/trials/*/status.json"):
                status.unlink()
        path = damage(sorted(place.glob(pattern)))
        found = [fault for reader in readers for fault in fault_of(reader, path)]
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(place)
        return found

    return read_all


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_no_fault(name, read):
    wrong = []
    for number in range(-(-NUM_FILES // len(READERS))):
        chance = covering.chance(f"{name} {number}")
        how = []

        def damage(paths, chance=chance, how=how):
            path = chance.choice(paths)
            how.append(damaging.damage(path, chance))
            return path

        if faults := read(name, damage):
            wrong.append((number, how, faults))

    assert [] == wrong


@pytest.mark.parametrize("what", KNOWN)
def test_what_was_a_fault_is_none_any_more(what, read):
    name, damage = KNOWN[what]

    def damage_first(paths):
        damage(paths[0])
        return paths[0]

    assert [] == read(name, damage_first)


OTHERS = (
    ("verify", "damaged"),
    ("list", "studies"),
    ("report", "damaged", "--format", "zip", "-o", "written.zip"),
)
"""Other readers of a study, of which each case has one."""
MANY_DIGITS = int("9" * 4000)

NUMBERS = (
    *(0, -0.0, -1, 1, 2, 3, 0.5, 1e-9, 1e-300, 5e-324, 1e300, 1.7e308, 1e100, -1e100),
    *(float("nan"), float("inf"), float("-inf"), True, False, 2**31, 2**53 + 1, 2**63),
    *(-(2**63), 10**18, 10**19, MANY_DIGITS, -MANY_DIGITS, 65536, 65537, 10**6, 10**9),
)
TEXTS = (
    *("", " ", "\0", "a\0b", "\ud800", "x\udfffy", "a\nb", "\x1b[31mred", "\u2028"),
    *("\N{RIGHT-TO-LEFT OVERRIDE}abc", "\N{PILE OF POO}" * 9, "\u4e2d\u6587"),
    *("a" * 200, "a" * 201, "a" * 10_000, "$\\frac{1}{", "$x$ and $y$", "[/red]"),
    *("<script>", "&lt;", "../../x", "/etc/passwd", "..", ".", "#010203"),
    *("{{ 7 * 7 }}", "%s", "nan", "1e999", "ok", "failed", "weak", "in_graph"),
    *("0" * 20, "f" * 20, "\u0627\u0644", "a; b; c"),
)
NESTED = (None, [], {}, [[]], [{}], {"": None}, [None], [0] * 5000, {"a": {"b": []}})
values = st.sampled_from((*NUMBERS, *TEXTS, *NESTED)) | st.text(max_size=8)
chances = st.integers(0, 2**40)


def pick(value, chance):
    """Returns the path of a part of a JSON value, a list as likely as a number."""
    path = []
    while value and isinstance(value, dict | list):
        chance, place = divmod(chance, len(value))
        path.append(sorted(value)[place] if isinstance(value, dict) else place)
        value = value[path[-1]]
        chance, is_end = divmod(chance, 3)
        if not is_end:
            break
    return tuple(path)


def like(value, path, chance, new):
    for key in path:
        value = value[key]
    if chance % 4 == 0:
        return new
    if isinstance(value, int | float):
        return NUMBERS[chance // 4 % len(NUMBERS)]
    return TEXTS[chance // 4 % len(TEXTS)] if isinstance(value, str) else new


def change(value, path, how, new):
    if not path:
        return new
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    if how == "set":
        parent[key] = new
    elif how == "remove":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.append(parent[key])
    elif how == "rename" and isinstance(parent, dict):
        parent[str(new)] = parent.pop(key)
    elif isinstance(parent[key], list):
        parent[key] = []
    return value


def load(path):
    """Returns what a plain file of a usual size holds; a pipe would not end."""
    if not path.is_file() or path.stat().st_size > 2**24:
        raise OSError(f"{path} was damaged before")
    return json.loads(path.read_text())


def rename(root, name, spec):
    """Gives the trial ``name`` another spec, and the ids that follow, everywhere."""
    try:
        wanted = TrialSpec.model_validate(spec)
        ids = trial_id(wanted), case_id(wanted)
    except ValueError:
        ids = name, name
    plan = load(root / "plan.json")
    for trial in plan["trials"]:
        if trial["trial_id"] == name:
            trial |= {"trial_id": ids[0], "case_id": ids[1], "spec": spec}
    (root / "plan.json").write_text(json.dumps(plan))
    folder = root / "trials" / name
    (folder / "spec.json").write_text(json.dumps(spec))
    for path in (folder / "status.json", folder / "result.json"):
        if path.exists():
            fields = load(path)
            path.write_text(json.dumps({**fields, "trial_id": ids[0]}))
    if ids[0] != name:
        folder.rename(root / "trials" / ids[0])


KINDS = (
    *("set", "set", "set", "set", "remove", "double", "rename", "empty"),
    *("spec", "spec", "bytes", "bytes", "place", "version"),
)
damages = st.lists(
    st.tuples(st.sampled_from(KINDS), chances, chances, values), min_size=1, max_size=3
)
"""What is damaged in a study directory, in one to three places."""


def damage(root, kind, first, second, new):
    files = sorted(
        p for p in root.rglob("*.json") if p.is_file() and p.stat().st_size < 2**24
    )
    if not files:
        return
    # Half of them to results and the plan, which most is computed from.
    rich = [p for p in files if p.name in ("result.json", "plan.json")]
    path = (rich if first % 2 and rich else files)[first // 2 % len(rich or files)]
    if kind == "place":
        others = [path, path.parent, root / "report", root / ".lock", root / "trials"]
        what = damaging.PLACES[first % len(damaging.PLACES)]
        damaging.put(others[max(0, second % 9 - 4)], what)
        return
    if kind == "bytes":
        damaging.damage(path, random.Random(first))
        return
    with contextlib.suppress(
        ValueError, LookupError, TypeError, OSError, RecursionError
    ):
        value = load(path)
        if kind == "version":
            value["schema_version"] = (1, 2, 7, 0, True, MANY_DIGITS)[second % 6]
        elif kind == "spec":
            folder = sorted((root / "trials").iterdir())[first % 2]
            spec = load(folder / "spec.json")
            place = pick(spec, second)
            new = like(spec, place, first, new)
            rename(root, folder.name, change(spec, place, "set", new))
            return
        else:
            place = pick(value, second)
            new = like(value, place, first // 7, new)
            value = change(value, place, kind, new)
        path.write_text(json.dumps(value))


def check(root, reader):
    of_report = (("report",), ("report", "--format=json"))
    subcommands = (("status",), ("status", "--json"), *of_report)
    written = root.with_name("written.zip")
    for words in (reader, *((*subcommand, root.name) for subcommand in subcommands)):
        had_written = written.exists()
        code, out, err = run(*words, "--runs-dir=.")
        if code == ExitCode.USAGE:
            # A report names the damaged record, and shows the others.
            is_shown = words[0] == "report" and "error: corrupt record " in err
            assert is_shown or had_written == written.exists(), words
        elif {"--json", "--format=json"} & {*words}:
            json.loads(out, parse_constant=pytest.fail)
    with pytest.MonkeyPatch.context() as patch:
        # Just built, and of what is resumed nothing ends well.
        patch.setattr(reports, "write_report", lambda *_, **__: None)
        run("sweep", "--study", root.name, "--runs-dir=.", "--retry=failed")


@covering.series
@settings(
    max_examples=NUM_STUDIES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(places=damages, reader=st.sampled_from(OTHERS))
def test_damaged_studies_are_reported_in_lines(eventful_study, places, reader):
    root = eventful_study.with_name("damaged")
    shutil.rmtree(root, ignore_errors=True)
    root.with_name("written.zip").unlink(missing_ok=True)
    shutil.copytree(eventful_study, root)
    for kind, *what in places:
        damage(root, kind, *what)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root.parent)
        check(root, reader)


RECORDS = (
    "plan.json",
    *(f"trials/*/{kind}.json" for kind in ("spec", "env", "status", "result")),
    "match/trials/*/result.json",
)
WRONG = (*("secret words", "3", "-1", "true", None, [], {}, -7.5, True), *NUMBERS)


def fields_of(value, path=()):
    """Yields the path of each field that holds a number, or may."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value[:1])
        for key, inner in items:
            yield from fields_of(inner, (*path, key))
    elif not isinstance(value, str):
        yield path


@covering.series
@settings(
    max_examples=covering.num_examples(8, 200),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    st.sampled_from(RECORDS),
    chances,
    st.sampled_from(WRONG),
    st.sampled_from(sorted({*FORMATS} - {"mlperf"})),  # which says how many files
)
@example("trials/*/status.json", ("exit_code",), "secret words", "zip")
@example("trials/*/status.json", ("duration_sec",), "3", "zip")
@example("trials/*/result.json", ("quality", 0, "confidence"), "0.5", "json")
@example("match/trials/*/result.json", ("window_sec",), [], "csv")
@example("plan.json", ("trials", 0, "spec", "budget"), "secret words", "zip")
def test_every_reader_says_the_same_of_a_wrong_field(
    eventful_study, record, field, value, form
):
    root = eventful_study.with_name("wrong")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(eventful_study, root)
    first = min((root / "trials").iterdir())
    shutil.copytree(first, root / "match" / "trials" / first.name)
    path = min(root.glob(record))
    content = load(path)
    if isinstance(field, int):
        field = (fields := [*fields_of(content)])[field % len(fields)]
    path.write_text(json.dumps(change(content, field, "set", value)))
    written = root.with_name("wrong.out")
    shutil.rmtree(written, ignore_errors=True)
    report = ("report", str(root), "--format", form, "-o", str(written / "out"))
    (status, _, said), (code, _, of_report), (verified, out, of_verify) = (
        run(*words) for words in (("status", str(root)), report, ("verify", str(root)))
    )
    lines = [line for line in of_report.splitlines() if line.startswith("error: ")]

    assert said.splitlines() == lines
    assert (status == ExitCode.USAGE) == (code == ExitCode.USAGE) == bool(lines)
    assert len(lines) <= 1
    if lines and verified == ExitCode.USAGE:  # nothing of the study is read
        assert said == of_verify
        assert not written.exists()
    elif lines:
        reason = lines[0].partition("': ")[2].partition("; the other records")[0]
        assert ExitCode.SOME_TRIALS_FAILED == verified
        assert record != "plan.json"
        assert reason[:40] in " ".join(out.split())
    elif form == "zip":
        with opened(written / "out") as unpacked:
            again = Store(unpacked).read()
        assert Store(root).public.read().trials == again.trials
