"""A study as event files for TensorBoard: scaling over replicas, and learning curves.

A *run* of TensorBoard is a folder. Each curve of the study is one run, so that the
names in TensorBoard are those of backends and scaling modes; in ``scaling/...`` the
step is the number of replicas. Step times are left out: a study has millions.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from reports import output_file
from reports.exports import event_file
from reports.site.card import slugs
from reports.view.view import view_store
from reports.words import brief, verdict

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator, Sequence

    from reports.view.view import View
    from results.figures.scaling import Point
    from results.judging.gate_metrics import Metric
    from results.store.study_store import Store
    from results.study.cases import Case, Entry

QUANTITIES: Final = ("throughput", "speedup", "efficiency", "efficiency_of_best")


def event_files(stores: Sequence[Store]) -> dict[str, bytes]:
    """Returns the event files of studies by their paths below the log directory.

    The same records give the same bytes.

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory.
    """
    views = [view_store(store) for store in stores]
    folders = slugs([view.study.plan.study for view in views])
    return {
        f"{folder}/{name}": content
        for folder, view in zip(folders, views, strict=True)
        for name, content in _of_study(view).items()
    }


def _of_study(view: View) -> dict[str, bytes]:
    plan = view.study.plan
    wall_time = _seconds(plan.created_at)
    judged = verdict.judge(view)
    words = "\n\n".join(
        [brief.judge(view).text, *(f"- {of}" for of in judged.unknowns)]
    )
    runs: list[tuple[str, list[bytes]]] = [
        ("verdict", [event_file.text("verdict", words, wall_time=wall_time)])
    ]
    for mode in view.study.modes:
        for backend in view.study.backends:
            points = view.points_of(mode, backend)
            records = [of for point in points for of in _scaling(point, wall_time)]
            if records:
                runs.append((f"{mode.value}-{backend}", records))
    runs += _learning(view, wall_time)
    names = slugs([name for name, _ in runs])
    return {
        f"{name}/events.out.tfevents.{int(wall_time):010d}.report": (
            event_file.contents(records, wall_time=wall_time)
        )
        for name, (_, records) in zip(names, runs, strict=True)
    }


def export(stores: Sequence[Store], _metric: Metric) -> dict[str, bytes]:
    """Returns what ``event_files`` does; all metrics are in it.

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory.
    """
    return event_files(stores)


def write_event_files(
    stores: Sequence[Store], folder: pathlib.Path
) -> list[pathlib.Path]:
    """Writes the event files of studies and returns their paths.

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory.
      WriteStoreError: ``folder`` cannot be written to.
    """
    return output_file.write_all(folder, event_files(stores), what="event files")


def _seconds(date: str) -> float:
    """Returns a date of a record in seconds since the epoch; 0 for any other text."""
    try:
        found = dt.datetime.fromisoformat(date.replace("Z", "+00:00"))
        return max(found.timestamp(), 0.0)
    except (ValueError, OverflowError, OSError):
        return 0.0


def _scaling(point: Point, wall_time: float) -> Iterator[bytes]:
    for name in QUANTITIES:
        estimate = getattr(point, name)
        if estimate is None:
            continue
        values = {"": estimate.value, "_low": estimate.low, "_high": estimate.high}
        for end, value in values.items():
            if value is not None:
                yield event_file.scalar(
                    f"scaling/{name}{end}",
                    value,
                    step=point.num_replicas,
                    wall_time=wall_time,
                )


def _learning(view: View, wall_time: float) -> Iterator[tuple[str, list[bytes]]]:
    for case in view.study.quality_runs:
        for entry in case.ok_entries:
            yield _run_name(case, entry), list(_curve(entry, wall_time))


def _run_name(case: Case, entry: Entry) -> str:
    spec = case.spec
    return (
        f"learning-{spec.backend}-x{spec.num_replicas}-batch{spec.global_batch_size}"
        f"-r{entry.spec.repetition_index}"
    )


def _curve(entry: Entry, wall_time: float) -> Iterator[bytes]:
    start = wall_time
    if entry.trial is not None and entry.trial.status is not None:
        start = _seconds(entry.trial.status.started_at)
    for point in entry.result.curve:
        for metric in point.quality:
            yield event_file.scalar(
                f"quality/{metric.name}",
                metric.value,
                step=point.num_steps,
                wall_time=start + point.train_time_sec,
            )
