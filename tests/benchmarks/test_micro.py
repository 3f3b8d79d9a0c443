"""Micro-benchmarks run, and two measurements are judged by the rule of ``gate``."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import study_files

from harness import ExitCode

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "benchmarks" / "micro"
QUIET = (1.00, 1.01, 0.99, 1.00)
NOISY = (0.7, 1.4, 0.8, 1.3)


def _with(times=(1.0,), **fields):
    return json.dumps(study_files.benchmarks({"test_a": times}, **fields))


@pytest.fixture
def micro(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.micro")


@pytest.fixture
def compare(micro, tmp_path, capsys):
    def run(new, old, *options, **fields):
        paths = [
            str(study_files.write_benchmarks(tmp_path / "new.json", new, **fields)),
            str(study_files.write_benchmarks(tmp_path / "old.json", old)),
        ]
        code = micro.main(["compare", *paths, *options])
        return code, *capsys.readouterr()

    return run


@pytest.mark.processes
def test_every_micro_benchmark_runs_once():
    """Without timing, so that none rots; one process imports TensorFlow once."""
    files = sorted(map(str, FOLDER.glob("bench_*.py")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--benchmark-disable", *files],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert 0 == done.returncode, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 18
    assert not re.search(r"skipped|failed|deselected", done.stdout)


@pytest.mark.processes
def test_repetitions_are_fresh_processes_in_one_file(
    micro, tmp_path, monkeypatch, capsys
):
    """The real format of pytest-benchmark, without the name of this machine."""
    output = tmp_path / "out" / "new.json"
    monkeypatch.setattr(micro, "MOST_SEC_OF_A_BENCHMARK", 0.01)
    # In a process of pytest-xdist, pytest-benchmark measures nothing.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'write or json'")
    code = micro.main(["run", "-o", str(output), "--repetitions=2", "store"])
    found = json.loads(output.read_text())

    assert 0 == code
    assert f"{output}\n" == capsys.readouterr().out
    assert "" == found["machine_info"]["node"]
    numbers = [of["extra_info"]["repetition"] for of in found["benchmarks"]]
    count = len(numbers) // 2
    assert count
    assert [0] * count + [1] * count == numbers
    # Two repetitions on a busy machine may leave it open.
    compared = micro.main(["compare", str(output), str(output), "--delta=100%"])
    assert compared in (ExitCode.OK, ExitCode.INCONCLUSIVE)
    assert ": time_per_call against" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factor", "spread", "code", "text"),
    [
        (1.0, QUIET, ExitCode.OK, r"^PASS: time_per_call"),
        (0.8, QUIET, ExitCode.OK, r"^IMPROVE: "),
        (1.2, QUIET, ExitCode.REGRESSION, r"\+20\.0\s%\s+\[\+\d+.* regress"),
        (1.0, NOISY, ExitCode.INCONCLUSIVE, r"^INCONCLUSIVE: "),
    ],
)
def test_the_verdict_is_that_of_a_gate(compare, factor, spread, code, text):
    old = {"test_a": [1e-3 * of for of in spread]}
    new = {"test_a": [factor * sec for sec in old["test_a"]]}
    found, out, _ = compare(new, old)

    assert code == found
    assert re.search(text, out, re.MULTILINE), out
    assert re.search(r"bench.py::test_a .*  4  ", out)
    assert "a weaker comparison" in out


def test_the_worst_verdict_is_that_of_the_whole(compare):
    old = {name: [1e-3 * of for of in QUIET] for name in ("test_a", "test_b")}
    new = {**old, "test_b": [2e-3 * of for of in QUIET]}
    code, out, _ = compare(new, old, "--format=json")
    judged = json.loads(out)

    assert ExitCode.REGRESSION == code
    assert "regress" == judged["verdict"]
    assert ["pass", "regress"] == [case["verdict"] for case in judged["cases"]]
    assert "bench.py::test_a" == judged["cases"][0]["name"]
    for form, text in {
        "junit": '<failure message="bench.py::test_b',
        "github": "::error title=performance gate::",
        "markdown": "| bench.py::test\\_b",
    }.items():
        assert text.replace("\\", "") in compare(new, old, f"--format={form}")[
            1
        ].replace("\\", "")


CPU = {"brand_raw": "Intel", "count": 2}
INTEL = {"machine_info": {**study_files.MACHINE, "cpu": CPU}}
FAILED = "SOME_TRIALS_FAILED"
ONCE, A, B = {"test_a": [1.0]}, {"test_a": QUIET}, {"test_b": QUIET}
UNJUDGED = [
    # However many rounds it has: processes differ.
    (ONCE, A, {}, "INCONCLUSIVE", r"test_a: 1 run\(s\), a verdict needs 2 or more"),
    (A, A, INTEL, "INCONCLUSIVE", r"not comparable.*cpu_model: 'Intel' and 'AMD EPYC'"),
    (A, A | B, {}, FAILED, r"failed: bench.py::test_b is in the baseline only"),
    (A | B, A, {}, "OK", r"new, not judged: bench.py::test_b\n"),
    (A, B, {}, "USAGE", "^error: the two files have no micro-benchmark in common.*\n$"),
]


@pytest.mark.parametrize(("new", "old", "fields", "code", "text"), UNJUDGED)
def test_what_cannot_be_judged_is_not_passed_over(
    compare, new, old, fields, code, text
):
    found, out, err = compare(new, old, **fields)

    assert ExitCode[code] == found
    assert re.search(text, out + err)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("compare", "a.json", "b.json", "--delta=5"), r"--delta: '5' is not a perce"),
        (
            ("run", "-o", "x", "reply"),
            r"unknown micro-benchmark 'reply'; known are steps, store",
        ),
    ],
)
def test_bad_arguments_end_with_exit_code_2(
    micro, tmp_path, capsys, monkeypatch, arguments, text
):
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "b.json"):
        study_files.write_benchmarks(tmp_path / name, {"test_a": QUIET})
    try:
        code = micro.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert ExitCode.USAGE == code
    assert re.search(text, capsys.readouterr().err)


BAD = [
    ("", r"Expecting value"),
    ("[" * 100_000, r"maximum recursion|nested"),
    ("[]", r"the record: Input should be a valid dictionary"),
    ("{}", r"machine_info: Field required"),
    (_with(benchmarks=[]), r"benchmarks: Tuple should have at least 1 item"),
    (_with(benchmarks=[1]), r"benchmarks\.0: Input should be a valid dictionary"),
    (_with(benchmarks=[{"fullname": "x"}]), r"benchmarks\.0\.stats\.median: Field req"),
    (_with([0.0]), r"median: Input should be greater"),
    (_with([float("nan")]), r"median: Input should be"),
    (_with(benchmarks=[study_files.benchmark("a", 1.0)] * 2), r"a benchmark twice"),
    (None, r"No such file"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_is_no_benchmark_is_one_line(micro, tmp_path, capsys, text, message):
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    code = micro.main(["compare", str(path), str(path)])
    _, err = capsys.readouterr()

    assert (ExitCode.USAGE, 1) == (code, err.count("\n"))
    assert re.search(
        rf"a\.json' has no benchmarks that .*{message}.*; give a file", err
    )
