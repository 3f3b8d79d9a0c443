"""Event files, read back with TensorFlow's own reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reports import output_file
from reports.exports import tensorboard
from reports.view.view import view_store

if TYPE_CHECKING:
    from pathlib import Path

    from results.store.study_store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: Any, synthetic: Any) -> Store:
    """A study with quality runs."""
    shape = synthetic.Shape(
        repeats=2, budget=synthetic.LEARNING, num_learning_runs=2, num_measured_steps=3
    )
    return synthetic.make_store(tmp_path_factory.mktemp("study"), shape)


def read(path: Path) -> list[Any]:
    """Returns the events of a file; TensorFlow checks every checksum."""
    import tensorflow as tf

    records = tf.data.TFRecordDataset(str(path))
    return [
        tf.compat.v1.Event.FromString(record) for record in records.as_numpy_iterator()
    ]


@pytest.fixture(scope="module")
def events(store: Store, tmp_path_factory: Any) -> dict[str, list[Any]]:
    """The events by run."""
    folder = tmp_path_factory.mktemp("events")
    files = tensorboard.export([store])
    paths = output_file.write_all(folder, files, what="event files")
    return {path.parent.name: read(path) for path in paths}


def test_tensorflow_reads_the_figures_of_the_report(
    store: Store, events: dict[str, list[Any]]
) -> None:
    """Step: replicas. Value and both ends of the interval, in single precision."""
    found = {
        (value.tag, event.step): value.simple_value
        for event in events["weak-in_graph"]
        for value in event.summary.value
    }
    (point,) = (
        point
        for point in view_store(store).points
        if (point.backend, point.mode.value, point.num_replicas)
        == ("in_graph", "weak", 2)
    )

    assert "brain.Event:2" == events["weak-in_graph"][0].file_version
    assert pytest.approx(point.efficiency.value) == found["scaling/efficiency", 2]
    assert pytest.approx(point.efficiency.low) == found["scaling/efficiency_low", 2]
    assert pytest.approx(point.efficiency.high) == found["scaling/efficiency_high", 2]
    assert pytest.approx(point.throughput.value) == found["scaling/throughput", 2]
    assert ("scaling/speedup", 1) not in found


def test_learning_curves_have_their_steps_and_times(
    events: dict[str, list[Any]],
) -> None:
    """One run per quality run; time passes within it."""
    runs = [name for name in events if name.startswith("learning-in_graph-x2-")]
    _, *points = events[runs[0]]

    assert 2 == len(runs)
    assert [event.step for event in points] == sorted({e.step for e in points})
    assert points[0].wall_time < points[-1].wall_time
    assert {"quality/top_1"} == {v.tag for e in points for v in e.summary.value}


def test_the_verdict_is_a_text(events: dict[str, list[Any]]) -> None:
    """As the text plugin of TensorBoard expects it."""
    _, event = events["verdict"]
    (value,) = event.summary.value

    assert "text" == value.metadata.plugin_data.plugin_name
    assert value.tensor.string_val[0].decode().count("in_graph keeps ") == 1


def test_the_same_records_give_the_same_bytes(store: Store) -> None:
    """And two studies of one name have folders of their own."""
    files = tensorboard.export([store])
    both = tensorboard.export([store, store])

    assert files == tensorboard.export([store])
    assert 2 * len(files) == len(both)


def test_numbers_beyond_single_precision_are_its_largest() -> None:
    """A record can have them, and one would otherwise end the export."""
    event = tensorboard.scalar("x", 1e300, step=0, wall_time=0.0)

    assert 3.4e38 < event.summary.value[0].simple_value < float("inf")
