"""What pytest-benchmark wrote becomes a record, or one line says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import benchmark_json
import jsonschema
import pytest

from results.errors import ResultsError
from results.judging import pytest_benchmark
from results.records import benchmark_record, schema

if TYPE_CHECKING:
    from pathlib import Path


def test_each_file_is_a_generation(tmp_path: Path) -> None:
    """As written by separate processes."""
    paths = [
        benchmark_json.write(tmp_path / f"{number}.json", {"test_a": [sec]})
        for number, sec in enumerate((1.0, 2.0, 3.0))
    ]
    found = pytest_benchmark.read(paths, "s")

    assert ["bench.py::test_a"] == found.names
    assert [1.0, 2.0, 3.0] == found.medians("bench.py::test_a")
    assert (benchmark_json.COMMIT, True) == (found.commit, found.is_source_modified)


def test_the_name_of_the_machine_is_not_recorded(tmp_path: Path) -> None:
    """A record is published."""
    path = benchmark_json.write(tmp_path / "a.json", {"test_a": [1.0]})
    found = pytest_benchmark.read([path], "s")

    assert "host-of-somebody" not in found.model_dump_json()
    assert "AMD EPYC, 2 cores" == found.machine.words


@pytest.mark.processes
def test_what_pytest_writes_today_can_be_read(tmp_path: Path) -> None:
    """The installed pytest-benchmark, not a copy of its format."""
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_sum(benchmark, n):\n    benchmark(sum, range(n))\n"
    )
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--benchmark-json=a.json"),
            "--benchmark-max-time=0.01",  # not a second for each
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        # In a process of pytest-xdist, pytest-benchmark measures nothing.
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
    )
    found = pytest_benchmark.read([tmp_path / "a.json"], "s")

    assert ["test_one.py::test_sum[1]", "test_one.py::test_sum[2]"] == found.names
    assert all(of.min_sec <= of.median_sec <= of.max_sec for of in found.times)
    assert found.measured_at > "2025"
    assert "Linux" == found.machine.system


def _with(times: Any = (1.0,), **fields: Any) -> str:
    return json.dumps(benchmark_json.document({"test_a": times}, **fields))


BAD = [
    ("", r"'a.json' is not JSON of pytest-benchmark: Expecting value"),
    ("[" * 100_000, r"cannot read '.*a.json': "),
    ("[]", r"it has no 'machine_info'; write it with 'pytest --benchmark-json FILE'"),
    ("{}", r"it has no 'machine_info'"),
    (_with(benchmarks=[]), r"measured nothing: it has no benchmark;"),
    (_with(benchmarks=[1]), r"a benchmark that cannot be read, None: TypeError"),
    (_with(benchmarks=[{"fullname": "x"}]), r"cannot be read, 'x': KeyError 'rounds'"),
    (_with([0.0]), r"'bench.py::test_a': median_sec: Input should be greater"),
    (_with([float("nan")]), r"'bench.py::test_a': median_sec: Input should be"),
    (
        _with(benchmarks=[benchmark_json.entry("a", 1.0)] * 2),
        r"a benchmark twice in one process; give each process a file of its own",
    ),
    (_with(datetime="x" * 300), r"cannot be imported: measured_at: String should"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_is_no_benchmark_is_one_line(
    tmp_path: Path, monkeypatch: Any, text: str, message: str
) -> None:
    """And nothing is raised but errors of results."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path.joinpath("a.json").relative_to(tmp_path)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultsError, match=message):
        pytest_benchmark.read([path], "s")


def test_files_of_two_machines_or_revisions_are_not_one_import(tmp_path: Path) -> None:
    """Their generations would have nothing in common."""
    first = benchmark_json.write(tmp_path / "a.json", {"test_a": [1.0]})
    machine = {**benchmark_json.MACHINE, "release": "6.19"}
    for fields, what in (
        ({"machine_info": machine}, "machine"),
        ({"commit_info": {"id": "ff"}}, "revision"),
    ):
        other = benchmark_json.write(tmp_path / "b.json", {"test_a": [1.0]}, **fields)
        with pytest.raises(ResultsError, match=rf"is of another {what} than .*a.json"):
            pytest_benchmark.read([first, other], "s")
    with pytest.raises(ResultsError, match=r"no benchmarks at '.*missing.json'"):
        pytest_benchmark.read([tmp_path / "missing.json"], "s")


def test_the_record_validates_against_the_published_schema(tmp_path: Path) -> None:
    """By an independent validator; and it is read back as it was."""
    path = benchmark_json.write(tmp_path / "a.json", {"test_a": [1.0, 2.0]})
    found = pytest_benchmark.read([path], "s")
    benchmark_record.write(tmp_path, found)
    validator = jsonschema.Draft202012Validator(json.loads(schema.render("benchmarks")))
    record = json.loads((tmp_path / "benchmarks.json").read_text())

    assert found == benchmark_record.read(tmp_path)
    assert [] == list(validator.iter_errors(record))
    assert not validator.is_valid({**record, "unknown": 1})
