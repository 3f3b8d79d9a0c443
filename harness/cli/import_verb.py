"""The verb ``import``: micro-benchmarks of pytest-benchmark become a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from harness.cli import exit_codes
from harness.cli.shared_options import RUNS_DIR, IsJson, RunsDir
from harness.errors import StudyError
from harness.options.kinds import TEXTS
from harness.options.option import Option, Options
from harness.planning import study as study_module
from results.judging import pytest_benchmark
from results.records import benchmark_record, identity

if TYPE_CHECKING:
    from harness.cli.verb import Call

NAME_PREFIX = "benchmarks-"


class ImportRequest(Options):
    """What is imported."""

    files: Annotated[
        tuple[Path, ...], Option(is_argument=True, kind=TEXTS, metavar="FILE...")
    ]
    study: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Directory below `--runs-dir`.",
            default="`benchmarks-<digest>`, the same for the same files",
        ),
    ] = None
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


def run(request: ImportRequest, _: Call) -> int:
    """Stores the benchmarks of some files and prints the directory.

    The same files again are no error; the directory stays as it is.

    Raises:
      ResultsError: A file cannot be read, or the directory cannot be written.
      StudyError: The name is no name, or stands for something else.
    """
    files, study, runs_dir = request.files, request.study, request.runs_dir
    if study is not None:
        study_module.check_name(study)
    found = pytest_benchmark.read(files, study or "")
    content = identity.digest(found.model_dump(mode="json", exclude={"study"}))
    name = study or f"{NAME_PREFIX}{content[:12]}"
    found = found.model_copy(update={"study": name})
    root = runs_dir / name
    _check_free(root, found)
    benchmark_record.write(root, found)
    num_generations = len({times.generation for times in found.times})
    if request.is_json:
        click.echo(
            json.dumps(
                {
                    "study": name,
                    "path": str(root),
                    "num_benchmarks": len(found.names),
                    "num_generations": num_generations,
                },
                indent=2,
            )
        )
    else:
        click.echo(str(root))
        click.echo(
            f"{len(found.names)} micro-benchmarks, {num_generations} generations",
            err=True,
        )
    return exit_codes.OK


def _check_free(root: Path, found: benchmark_record.Benchmarks) -> None:
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return
    is_same = benchmark_record.holds_benchmarks(root) and (
        benchmark_record.read(root) == found
    )
    if not is_same:
        raise StudyError(
            f"{str(root)!r} exists and holds something else; choose another --study"
        )
