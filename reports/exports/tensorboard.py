"""A study as event files for TensorBoard: scaling over replicas, and learning curves.

A *run* of TensorBoard is a folder. Each curve of the study is one run, so that the
names in TensorBoard are those of backends and scaling modes; in ``scaling/...`` the
step is the number of replicas. Step times are left out: a study has millions.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from typing import TYPE_CHECKING, Final

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.record_writer import RecordWriter

from reports.site.card import slugs
from reports.view.view import view_store
from reports.words import brief, verdict
from results.figures import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reports.view.view import View
    from results.figures.scaling import Point
    from results.judging.gate_metrics import Metric
    from results.store.study_store import Store
    from results.study.cases import Case, Entry

_LARGEST_FLOAT: Final = 3.4028234663852886e38


def export(stores: Sequence[Store], _metric: Metric | None = None) -> dict[str, bytes]:
    """Returns the event files of studies by their paths below the log directory.

    All metrics are in them. The same records give the same bytes.

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
    runs = [("verdict", [_text("verdict", words, wall_time)])]
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
            _contents(records, wall_time)
        )
        for name, (_, records) in zip(names, runs, strict=True)
    }


def scalar(tag: str, value: float, *, step: int, wall_time: float) -> Event:
    """Returns one scalar, in single precision.

    Args:
      tag: Its name; a slash makes a group.
      value: Beyond single precision, the nearest value that it has is taken.
      step: Not negative.
      wall_time: Seconds since the epoch.
    """
    value = min(max(value, -_LARGEST_FLOAT), _LARGEST_FLOAT)
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return Event(wall_time=wall_time, step=step, summary=summary)


def _text(tag: str, content: str, wall_time: float) -> Event:
    """Returns a string, which TensorBoard shows as Markdown; step 0."""
    value = Summary.Value(
        tag=tag,
        metadata=SummaryMetadata(
            plugin_data=SummaryMetadata.PluginData(plugin_name="text")
        ),
        tensor=TensorProto(dtype="DT_STRING", string_val=[content.encode()]),
    )
    return Event(wall_time=wall_time, summary=Summary(value=[value]))


def _contents(events: Sequence[Event], wall_time: float) -> bytes:
    """Returns a whole event file: TFRecords, the first of which names the format."""
    version = Event(wall_time=wall_time, file_version="brain.Event:2")
    with tempfile.NamedTemporaryFile() as file:
        writer = RecordWriter(file.name)
        for event in (version, *events):
            writer.write(event.SerializeToString(deterministic=True))
        writer.close()
        return file.read()


def _seconds(date: str) -> float:
    """Returns a date of a record in seconds since the epoch; 0 for any other text."""
    try:
        found = dt.datetime.fromisoformat(date.replace("Z", "+00:00"))
        return max(found.timestamp(), 0.0)
    except (ValueError, OverflowError, OSError):
        return 0.0


def _scaling(point: Point, wall_time: float) -> Iterator[Event]:
    for name, figure in table.ratios(point).items():
        estimate = figure.estimate
        if estimate is None:
            continue
        values = {"": estimate.value, "_low": estimate.low, "_high": estimate.high}
        for end, value in values.items():
            if value is not None:
                yield scalar(
                    f"scaling/{name}{end}",
                    value,
                    step=point.num_replicas,
                    wall_time=wall_time,
                )


def _learning(view: View, wall_time: float) -> Iterator[tuple[str, list[Event]]]:
    for case in view.study.quality_runs:
        for entry in case.ok_entries:
            yield _run_name(case, entry), list(_curve(entry, wall_time))


def _run_name(case: Case, entry: Entry) -> str:
    spec = case.spec
    return (
        f"learning-{spec.backend}-x{spec.num_replicas}-batch{spec.global_batch_size}"
        f"-r{entry.spec.repetition_index}"
    )


def _curve(entry: Entry, wall_time: float) -> Iterator[Event]:
    start = wall_time
    if entry.trial is not None and entry.trial.status is not None:
        start = _seconds(entry.trial.status.started_at)
    for point in entry.result.curve:
        for metric in point.quality:
            yield scalar(
                f"quality/{metric.name}",
                metric.value,
                step=point.num_steps,
                wall_time=start + point.train_time_sec,
            )
