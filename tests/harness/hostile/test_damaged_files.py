"""Any file that is read is damaged in any way: one line, or an answer; never a fault.

Of each file that a verb or the harness reads beside the records of a study, which have
``tests/harness/run/test_hostile_records.py``. ``DAMAGED_FILES`` sets how many;
``make fuzz-records`` damages 2,000. ``FAULTS_SEED`` draws others.
"""

import os
import re
import shutil
import time
import traceback

import covering
import drawn
import pytest
import read_files
from command_words import smoke_sweep
from damaged import damage, put
from hung import Hung, at_most

from harness.cli import exit_codes
from harness.cli import main as cli
from harness.machine import gpus
from results.judging import gate_logs
from results.records.models import GateCase, GateRecord
from results.store.study_store import Store

pytestmark = pytest.mark.processes

DRAWN_HERE = "220" if covering.is_full() else "22"
NUM_FILES = int(os.environ.get("DAMAGED_FILES", DRAWN_HERE))
LONGEST_SEC = 30
CODES = {
    value
    for name, value in vars(exit_codes).items()
    if name.isupper() and name not in ("INTERNAL_FAULT", "INTERRUPTED")
}
NOTES = ("error: ", "left out: ", "report: ", "note: ", "study ")
SMALL = smoke_sweep("--backends=in_graph --replicas=1,2 --mode=weak --budget=none")
TOML = """
workload = "resnet50"
preset = "smoke"
replicas = "1,2"
mode = ["weak"]
repeats = 2
budget = "none"
minutes = "5min"
[option]
image_size = 32
"""


GATE = GateRecord(
    verdict="regress", is_pass=False, headline="REGRESS: it is slower",
    metric="throughput", worse="slower", baseline="main", delta=0.05, alpha=0.05,
    exit_code=1, notes=("looked after 3 generations",), failures=("in_graph x2: lost",),
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
            ("--study=r", "--repeats=2", "--order=relay", "--rounds=3"),
            ("--study=v", "--repeats=1", "--order=sequential", "--no-match",
             "--vary=data=digits,synthetic"),
        ):  # fmt: skip
            code = cli.main((*SMALL, *more), run_overrides=overrides)
            assert exit_codes.OK == code
    study = root / "runs" / "r"
    shutil.make_archive(str(root / "records"), "zip", root / "runs", "r")
    gate_logs.write_gate(Store(study), GATE)
    (study / "report").mkdir(exist_ok=True)
    (study / "report" / "index.html").write_text("<p>a page of 12 numbers</p>\n")
    (study / ".lock-holder").write_text("1\n")
    (study / ".lock-heartbeat").write_text("another 0123\n")
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


def with_text(old, new):
    def run(path):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return run


def all_void(path):
    for other in path.parents[1].glob("*/turns.jsonl"):
        text = other.read_text()
        others = '"foreign_cpu_fraction": 0.9'
        other.write_text(re.sub(r'"foreign_cpu_fraction": [\d.]+', others, text))


READERS = {
    "observations": (
        "runs/r/trials/*/rank_0.jsonl",
        ("verify r", "report r --format zip -o r.zip", "status r"),
    ),
    "load within turns": ("runs/r/trials/*/turns.jsonl", ("status r",)),
    "load of turns": (
        "runs/r/trials/*/turns.jsonl",
        ("verify r", "report r --format zip -o r.zip"),
    ),
    "observations of a match": (
        "runs/r/match/trials/*/rank_0.jsonl",
        ("verify r", "status r"),
    ),
    "manifest": ("runs/r/SHA256SUMS", ("verify r", "report r --format zip -o r.zip")),
    "page": ("runs/r/report/index.html", ("verify r", "report r -o page.html")),
    "holder": ("runs/r/.lock-holder", ("status r", "status r --json")),
    "owner": ("runs/r/.lock-heartbeat", ("sweep --study r",)),
    "varied study": ("runs/v/vary.json", ("status v", "verify v", "list studies")),
    "records of a page": ("records.zip", ("verify records.zip",)),
    "what a gate concluded": ("runs/r/gate.json", (read_files.of_gate, "status r")),
    "study file": ("study.toml", ("sweep --dry-run study.toml",)),
    "numbers in JSON": ("numbers.json", (read_files.of_numbers("json", "a.b"),)),
    "numbers in CSV": ("numbers.csv", (read_files.of_numbers("csv", "rate"),)),
    "note of compiled code": ("cuda/*", (read_files.of_note,)),
    "what a trial wrote": ("trial/rank_0.jsonl", (read_files.of_trial,)),
    "what ended first": ("trial/first_exit.json", (read_files.of_trial,)),
}  # fmt: skip


KNOWN = {
    "numbers from a pipe": ("numbers in JSON", lambda path: put(path, "pipe")),
    "numbers nested deeply": ("numbers in JSON", with_bytes(b"[" * 60_000)),
    "a column of 200 kB": ("numbers in CSV", with_bytes(b"rate\n" + b"9" * 200_000)),
    "a line that is a number": ("what a trial wrote", with_bytes(b"5\n")),
    "a loss beyond any float": (
        "what a trial wrote",
        with_bytes(b'{"kind": "gpu_canary", "tflops": [%s]}\n' % (b"9" * 400)),
    ),
    "observations from a pipe": ("what a trial wrote", lambda path: put(path, "pipe")),
    "a first exit nested deeply": ("what ended first", with_bytes(b"[" * 60_000)),
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
    "turns that are a link": ("load within turns", lambda path: put(path, "loop")),
    "a turn that is a list": ("load within turns", with_bytes(b"[]\n")),
    "an owner that is a pipe": ("owner", lambda path: put(path, "pipe")),
    "an owner without an end": ("owner", lambda path: put(path, "endless")),
    "no turn that counts": ("load of turns", all_void),
    "a count without what it was": (
        "what a gate concluded",
        with_text('"before": 10.0', '"before": null'),
    ),
    "a note nested deeply": ("note of compiled code", with_bytes(b"[" * 60_000)),
}
"""What once was a fault, or was waited for."""


@pytest.fixture
def read(whole, tmp_path, overrides, capsys, monkeypatch):
    """Returns what damages a file in a copy of all, and says how reading it failed."""
    monkeypatch.setattr("reports.page.build.build_report", lambda *_, **__: "<p>12</p>")
    place = tmp_path / "place"

    def run(name, damaged):
        pattern, readers = READERS[name]
        shutil.copytree(whole, place)
        monkeypatch.chdir(place)
        if name == "load within turns":  # which are read while they are written
            (place / "runs/r/.lock-holder").write_text(f"{os.getpid()}\n")
            for status in place.glob("runs/r/trials/*/status.json"):
                status.unlink()
        path = damaged(sorted(place.glob(pattern)))
        found = []
        for reader in readers:
            started = time.monotonic()
            fault = fault_of(reader, path, overrides, capsys)
            if not fault and time.monotonic() - started > LONGEST_SEC / 2:
                fault = "it took long"
            found += [f"{reader}: {fault}"] * bool(fault)
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(place)
        return found

    return run


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_no_fault(name, read):
    wrong = []
    for number in range(-(-NUM_FILES // len(READERS))):
        chance = drawn.chance(f"{name} {number}")
        how = []

        def damaged(paths, chance=chance, how=how):
            path = chance.choice(paths)
            how.append(damage(path, chance))
            return path

        if faults := read(name, damaged):
            wrong.append((number, how, faults))

    assert [] == wrong


@pytest.mark.parametrize("what", KNOWN)
def test_what_was_a_fault_is_none_any_more(what, read):
    name, damaged = KNOWN[what]

    def first(paths):
        damaged(paths[0])
        return paths[0]

    assert [] == read(name, first)


def fault_of(reader, path, overrides, capsys):
    """Runs a reader; returns what is wrong with how it ended, or ""."""
    try:
        with at_most(LONGEST_SEC):
            if not isinstance(reader, str):
                reader(path)
                return ""
            code = cli.main(reader.split(), run_overrides=overrides)
    except Hung:
        return "it hangs"
    except Exception:  # noqa: BLE001 - whatever it is, is a fault
        return traceback.format_exc()[-1500:]
    _, err = capsys.readouterr()
    if code not in CODES or "Traceback" in err:
        return f"code {code}: {err[-1500:]}"
    is_in_lines = err and all(line.startswith(NOTES) for line in err.splitlines())
    return f"no line: {err}" if code == exit_codes.USAGE and not is_in_lines else ""
