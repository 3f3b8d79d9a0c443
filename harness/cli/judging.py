"""The verbs ``compare`` and ``baseline``, and what they share with ``gate``."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from harness.cli import exit_codes
from harness.errors import MatchStudyError, PlanError, StudyError
from harness.judging import baselines
from harness.planning import study as study_module
from reports.words import judgement
from results.judging import compare as compare_module
from results.judging import gate_metrics
from results.store.study_store import Store
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from results.judging.compare import RatioTable
    from results.study.cases import Study

_WRITE_COMPARISON: dict[str, Callable[[RatioTable], str]] = {
    "text": judgement.comparison_text,
    "json": judgement.comparison_json,
    "markdown": judgement.comparison_markdown,
}


def load(text: str, runs_dir: Path) -> Study:
    """Reads a study by name or path.

    Raises:
      ResultsError: There is none, or it cannot be read.
    """
    return load_study(Store.open(study_module.find_study(text, runs_dir)))


def compare(
    first: str,
    second: str,
    *,
    study: str | None,
    metric: str,
    is_different_allowed: bool,
    form: str,
    runs_dir: Path,
) -> int:
    """Prints the ratios of two studies, or of two sides of one.

    Raises:
      MatchStudyError: The studies are not comparable.
      ResultsError: A name is unknown, or nothing can be compared.
    """
    of = gate_metrics.metric_of(metric)
    if study is None:
        comparison = compare_module.of_studies(
            load(first, runs_dir), load(second, runs_dir), of
        )
        check_comparable(first, second, comparison.differences, is_different_allowed)
    else:
        comparison = compare_module.within(load(study, runs_dir), first, second, of)
    click.echo(_WRITE_COMPARISON[form](comparison))
    return exit_codes.INCONCLUSIVE if comparison.differences else exit_codes.OK


def check_comparable(
    first: str, second: str, differences: Sequence[str], is_different_allowed: bool
) -> None:
    """Refuses studies that are not comparable, unless they are to be shown anyway.

    Raises:
      MatchStudyError: Names what differs.
    """
    if differences and not is_different_allowed:
        raise MatchStudyError(
            f"{first!r} and {second!r} are not comparable: {'; '.join(differences)};"
            " measure both on one machine with the same options, or use"
            " --allow-different to see them anyway"
        )


def baseline(
    action: str, study: str | None, *, name: str, runs_dir: Path, is_json: bool
) -> int:
    """Sets, lists or shows named baselines.

    Raises:
      PlanError: The arguments do not fit the action.
      ResultsError: There is no such study.
      StudyError: There is no such baseline, or the file cannot be read.
    """
    if (action == "set") != (study is not None):
        needs = "a STUDY" if action == "set" else "no STUDY; use --name"
        raise PlanError(f"'baseline {action}' takes {needs}")
    if action == "set":
        assert study is not None
        loaded = load(study, runs_dir)
        if not any(case.ok_entries for case in loaded.cases):
            raise StudyError(
                f"study {study!r} has no trial that is ok, so nothing can be judged"
                " against it; finish it with 'resume'"
            )
        made = baselines.set_baseline(runs_dir, name, study)
        click.echo(f"{made.name}: {made.study}")
        return exit_codes.OK
    if action == "list":
        found = baselines.read_baselines(runs_dir)
        if is_json:
            data = [dataclasses.asdict(of) for of in found.values()]
            click.echo(json.dumps(data, indent=2))
        for of in () if is_json else found.values():
            click.echo(f"{of.name}: {of.study}, set at {of.set_at}")
        return exit_codes.OK
    shown = baselines.get_baseline(runs_dir, name)
    if is_json:
        click.echo(json.dumps(dataclasses.asdict(shown), indent=2))
    else:
        click.echo(f"{shown.name}: {shown.study}, set at {shown.set_at}")
    return exit_codes.OK
