"""Reads what ``pytest --benchmark-json`` wrote, of one process or of several."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pydantic

from results import errors
from results.records.benchmark_record import Benchmarks, BenchmarkTimes
from results.store.record_file import MAX_BYTES, first_complaint

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

GENERATION: Final = "generation"
"""In ``extra_info``: the process, where one file holds several."""
_COMMIT_LENGTH: Final = 40


def read(paths: Sequence[pathlib.Path], study: str) -> Benchmarks:
    """Returns the benchmarks of some files, each of one process unless it says more.

    Raises:
      ResultsError: A file cannot be read or is not of pytest-benchmark, a benchmark is
        there twice in one process, or the files are of several machines or revisions.
    """
    documents = [_document(path) for path in paths]
    machines = [_machine(of) for of in documents]
    commits = [_commit(of) for of in documents]
    for path, machine, commit in zip(paths[1:], machines[1:], commits[1:], strict=True):
        if (machine, commit) != (machines[0], commits[0]):
            what = "machine" if machine != machines[0] else "revision"
            raise errors.ResultsError(
                f"{str(path)!r} is of another {what} than {str(paths[0])!r}; import"
                " files of one machine and revision at a time"
            )
    times: list[dict[str, Any]] = []
    for path, document in zip(paths, documents, strict=True):
        first = max((of["generation"] for of in times), default=-1) + 1
        found = [_times(of, first, path) for of in document["benchmarks"]]
        keys = {(of["name"], of["generation"]) for of in found}
        if len(keys) < len(found):
            raise errors.ResultsError(
                f"{str(path)!r} has a benchmark twice in one process; give each process"
                f" a file of its own, or its number as extra_info[{GENERATION!r}]"
            )
        times += found
    try:
        return Benchmarks.model_validate(
            {
                "study": study,
                "measured_at": min(str(of.get("datetime", "")) for of in documents),
                "commit": commits[0][0][:_COMMIT_LENGTH],
                "is_source_modified": commits[0][1],
                "machine": machines[0],
                "times": times,
            }
        )
    except pydantic.ValidationError as error:
        raise errors.ResultsError(
            f"{str(paths[0])!r} cannot be imported: {first_complaint(error)}"
        ) from error


def _document(path: pathlib.Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise errors.ResultsError(
                f"no benchmarks at {str(path)!r}: give a file that 'make bench-micro'"
                " or 'pytest --benchmark-json FILE' wrote"
            )
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError) as error:
        raise errors.ResultsError(f"cannot read {str(path)!r}: {error}") from error
    except ValueError as error:
        if isinstance(error, errors.ResultsError):
            raise
        raise errors.ResultsError(
            f"{str(path)!r} is not JSON of pytest-benchmark: {error}"
        ) from error
    parts = ("machine_info", "benchmarks")
    missing = [name for name in parts if not isinstance(data, dict) or name not in data]
    if missing or not isinstance(data["benchmarks"], list) or not data["benchmarks"]:
        what = f"no {missing[0]!r}" if missing else "no benchmark"
        raise errors.ResultsError(
            f"{str(path)!r} is not of pytest-benchmark, or measured nothing: it has"
            f" {what}; write it with 'pytest --benchmark-json FILE'"
        )
    return data


def _part(data: Any, name: str) -> dict[str, Any]:
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _machine(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts of a machine; without its name, which is nobody's business."""
    info = _part(document, "machine_info")
    cpu = _part(info, "cpu")
    return {
        "cpu_model": str(cpu.get("brand_raw") or info.get("processor") or "unknown"),
        "num_logical_cores": cpu.get("count"),
        "system": str(info.get("system", "")),
        "kernel": str(info.get("release", "")),
        "architecture": str(info.get("machine", "")),
        "python_version": str(info.get("python_version", "")),
    }


def _commit(document: dict[str, Any]) -> tuple[str, bool]:
    info = _part(document, "commit_info")
    return str(info.get("id") or ""), bool(info.get("dirty"))


def _times(benchmark: Any, first: int, path: pathlib.Path) -> dict[str, Any]:
    stats = _part(benchmark, "stats")
    name = benchmark.get("fullname") if isinstance(benchmark, dict) else None
    try:
        found = {
            "name": str(name or benchmark["name"]),
            "generation": first
            + int(_part(benchmark, "extra_info").get(GENERATION, 0)),
            "num_rounds": stats["rounds"],
            **{f"{of}_sec": stats[of] for of in ("median", "mean", "min", "max")},
        }
        BenchmarkTimes.model_validate(found)
    except (KeyError, TypeError, ValueError) as error:
        text = (
            first_complaint(error)
            if isinstance(error, pydantic.ValidationError)
            else f"{type(error).__name__} {error}"
        )
        raise errors.ResultsError(
            f"{str(path)!r} has a benchmark that cannot be read, {name!r}: {text}"
        ) from error
    return found
