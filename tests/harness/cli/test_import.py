"""Imported micro-benchmarks: ``compare`` and ``history`` cover them, others refuse."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import benchmark_json
import pytest

from harness.cli import exit_codes
from results.statistics import change_points

if TYPE_CHECKING:
    from pathlib import Path

QUIET = (1.00e-3, 1.01e-3, 0.99e-3, 1.00e-3)


@pytest.fixture
def import_times(harness: Any, tmp_path: Path) -> Any:
    """Returns a function that imports seconds by benchmark as a study."""

    def run(study: str, times: Any, **fields: Any) -> None:
        path = str(benchmark_json.write(tmp_path / f"{study}.json", times, **fields))
        code, out, err = harness("import", path, "--study", study)
        assert (exit_codes.OK, f"runs/{study}\n") == (code, out), err

    return run


def test_importing_twice_changes_nothing(
    harness: Any, tmp_path: Path, written: Any
) -> None:
    """The derived name is that of the content."""
    path = str(
        benchmark_json.write(tmp_path / "a.json", {"test_a": QUIET, "test_b": QUIET})
    )
    code, out, err = harness("import", path)
    before = written()

    assert exit_codes.OK == code
    assert re.fullmatch(r"runs/benchmarks-[0-9a-f]{12}\n", out)
    assert "2 micro-benchmarks, 4 generations\n" == err
    assert (exit_codes.OK, out, err) == harness("import", path)
    assert before == written()
    _, as_json, _ = harness("import", path, "--json")
    assert (2, 4) == tuple(
        json.loads(as_json)[key] for key in ("num_benchmarks", "num_generations")
    )


def test_compare_has_the_ratio_of_two_imports(harness: Any, import_times: Any) -> None:
    """With its interval; a metric of trials is refused."""
    import_times("old", {"test_a": QUIET})
    import_times("new", {"test_a": [2 * sec for sec in QUIET]})
    code, out, _ = harness("compare", "new", "old")

    assert exit_codes.OK == code
    assert re.search(
        r"bench.py::test_a +2\.000 +\[1\.9\d\d, 2\.0\d\d\] +4 .*differs", out
    )
    assert "ratios of time_per_call, new / old" in out
    code, _, err = harness("compare", "new", "old", "--metric=peak_memory")
    assert exit_codes.USAGE == code
    assert re.search(r"--metric peak_memory: micro-benchmarks have time_per_call", err)


def test_another_machine_is_not_compared(harness: Any, import_times: Any) -> None:
    """Unless it is shown only."""
    import_times("old", {"test_a": QUIET})
    machine = {**benchmark_json.MACHINE, "release": "6.19"}
    import_times("new", {"test_a": QUIET}, machine_info=machine)
    code, _, err = harness("compare", "new", "old")
    shown, _, _ = harness("compare", "new", "old", "--allow-different")

    assert (exit_codes.USAGE, exit_codes.INCONCLUSIVE) == (code, shown)
    assert re.search(r"not comparable: kernel: '6.19' and '6.18.0'", err)


def test_history_finds_where_a_benchmark_became_slower(
    harness: Any, import_times: Any
) -> None:
    """By the same change points as throughputs of studies."""
    for day in range(change_points.FEWEST + 4):
        factor = 1.0 if day < 6 else 1.5
        import_times(
            f"day-{day:02}",
            {"test_a": [factor * sec * (1 + day % 3 / 500) for sec in QUIET]},
            datetime=f"2026-01-{day + 1:02}T12:00:00+00:00",
        )
    code, out, _ = harness("history", "--json")
    (series,) = json.loads(out)["series"]

    assert exit_codes.OK == code
    assert "bench.py::test_a" == series["case"]
    changes = [seen["change"] for seen in series["observations"]]
    assert [6] == [day for day, change in enumerate(changes) if change is not None]
    assert 1 / 1.5 == pytest.approx(changes[6], rel=0.02)
    assert "calls/s" == series["observations"][0]["throughput"]["unit"]


def test_studies_and_imports_lie_side_by_side(
    harness: Any, import_times: Any, finished: Any
) -> None:
    """Each verb takes what it can; the other is one line that says what to do."""
    import_times("times", {"test_a": QUIET})
    code, out, _ = harness("history", "--json")

    assert exit_codes.OK == code
    assert {"resnet50", "micro-benchmark"} == {
        series["workload"] for series in json.loads(out)["series"]
    }
    assert exit_codes.OK == harness("report", "s")[0]
    _, listed, _ = harness("list", "studies")
    assert re.search(
        r"^times  2026-01-01 12:00  1 micro-benchmarks, 4 gen", listed, re.MULTILINE
    )
    as_data = json.loads(harness("list", "studies", "--json")[1])
    assert ["s"] == [row["name"] for row in as_data["studies"]]
    assert [1] == [row["num_benchmarks"] for row in as_data["benchmarks"]]
    for verb in ("report", "status", "resume", "verify"):
        code, _, err = harness(verb, "times")
        assert exit_codes.USAGE == code
        assert re.search(r"no trials at 'runs/times': it holds imported micro-ben", err)
    code, _, err = harness("compare", "times", "s")
    assert exit_codes.USAGE == code
    assert re.search(r"of 'times' and 's', only one holds imported micro-bench", err)


def test_a_name_that_is_taken_is_one_line_and_nothing_changes(
    harness: Any, import_times: Any, finished: Any, tmp_path: Path, written: Any
) -> None:
    """By a study, by other benchmarks, or no name at all."""
    import_times("times", {"test_a": QUIET})
    path = str(benchmark_json.write(tmp_path / "b.json", {"test_b": QUIET}))
    before = written()
    for study, message in {
        "s": r"'runs/s' exists and holds something else; choose another --study",
        "times": r"'runs/times' exists and holds something else",
        "a/b": r"--study 'a/b' is not a study name",
    }.items():
        code, out, err = harness("import", path, "--study", study)
        assert (exit_codes.USAGE, "", 1) == (code, out, err.count("\n"))
        assert re.search(message, err)
    assert before == written()
