"""A timeline: the marks of a linked step, what the file says, what is refused."""

from __future__ import annotations

import itertools
import json
import types

import pytest
import tensorflow as tf

import replicator
from replicator.engine.run import marks, timeline
from replicator.engine.run.clocks import Clock

NUM_LAYERS = 3


def step(x):
    """Layers that follow one another, a gradient of each, and a sum."""
    weights = [x] * NUM_LAYERS
    with tf.GradientTape() as tape:
        tape.watch(weights)
        for index, weight in enumerate(weights):
            with tf.name_scope(f"model/layer_{index}"):
                x = tf.tanh(tf.linalg.matmul(x, weight))
        loss = tf.reduce_sum(x)
    return replicator.all_sum(loss)


@pytest.fixture
def pair():
    """Two replicas, and their inputs."""
    repl = replicator.create("in_graph", num_replicas=2)
    return repl, replicator.PerReplica([tf.ones([64, 64]), tf.ones([64, 64])])


def events_of(path, category):
    """Of the last recorded step, in the order of their begin."""
    found = json.loads(path.read_text())["traceEvents"]
    last = max(e["args"]["step"] for e in found if e["ph"] == "X")
    found = [e for e in found if e.get("cat") == category and e["args"]["step"] == last]
    return sorted(found, key=lambda event: event["ts"])


def nodes_of(repl):
    """Operations of the functions that run steps, by whether marks are in them."""
    ((_, program),) = repl._programs.items()
    return {
        is_timed: [node.op for node in assembly._function_def().node_def]
        for is_timed, assembly in (
            (False, program._assembly),
            (True, vars(program).get("_timed")),
        )
        if assembly is not None
    }


def test_a_step_without_a_timeline_has_no_marks(pair):
    """Nor after one that has been recorded: its marks are in a function of its own."""
    repl, x = pair
    repl.run(step, x)

    assert [False] == list(nodes_of(repl))
    assert "Timestamp" not in nodes_of(repl)[False]


def test_layers_follow_one_another_in_the_row_of_each_replica(pair, tmp_path):
    """Forward in their order, then backward; none begins before the one before ends.

    Nor does their sum. Its mark and theirs are of several threads, of which one may be
    late: that order is seen within three recordings.
    """
    repl, x = pair
    recordings = [_recorded(repl, x, tmp_path / f"{i}.json") for i in range(3)]

    for rows, _ in recordings:
        for events in rows:
            for before, after in itertools.pairwise(events):
                assert before["ts"] + before["dur"] <= after["ts"] + 2.0
    assert any(
        max(e["ts"] + e["dur"] for events in rows for e in events) <= total["ts"] + 2.0
        for rows, total in recordings
    )


def _recorded(repl, x, path):
    """The layers in the row of each replica, and the collective, of two steps."""
    repl.timeline(path, steps=2)
    results = [float(repl.run(step, x)[0]) for _ in range(5)]
    assert repl.is_recording
    results.append(float(repl.run(step, x)[0]))
    assert not repl.is_recording
    assert path.exists()
    assert 1 == len(set(results))
    rows = {}
    for event in events_of(path, "compute"):
        rows.setdefault(event["tid"], []).append(event)
    (total,) = events_of(path, "collective")
    assert 2 == len(rows)
    for events in rows.values():
        assert [f"model/layer_{i}" for i in range(NUM_LAYERS)] == [
            event["name"] for event in events if "backward" not in event["name"]
        ]
    assert (4, "add_n", "all_reduce(sum)") == tuple(
        total["args"][key] for key in ("bytes", "way", "call")
    )
    return [*rows.values()], total


def test_marks_are_all_that_is_added_to_a_step(pair, tmp_path):
    """Nodes and edges are those of the step; what waits for a mark needs its node."""
    repl, x = pair
    repl.timeline(tmp_path / "trace.json", steps=1)
    for _ in range(2):
        repl.run(step, x)
    ((_, program),) = repl._programs.items()
    plain, timed = (
        {
            node.name.replace(assembly._name, "step"): [
                text.replace(assembly._name, "step") for text in node.input
            ]
            for node in assembly._function_def().node_def
        }
        for assembly in (program._assembly, program._timed)
    )
    dates = {
        f"^{name}": sources[0].removeprefix("^")
        for name, sources in timed.items()
        if name.startswith("step/mark_")
    }
    added = timed.keys() - plain.keys()

    assert {"step/marks", *(name[1:] for name in dates)} == added
    for name, sources in plain.items():
        waits = [text for text in timed[name] if text in dates]
        assert sources == [text for text in timed[name] if text not in dates]
        needed = {text.removeprefix("^").partition(":")[0] for text in sources}
        passed = {n for text in needed for n in _names_in(plain.get(text, []))}
        assert {dates[text] for text in waits} <= needed | passed


def _names_in(inputs):
    return [text.removeprefix("^").partition(":")[0] for text in inputs]


def test_steps_of_one_dispatch_are_recorded_each(pair, tmp_path):
    """Six steps are two with marks, after one of each kind; the rest run as ever."""
    repl, x = pair
    path = tmp_path / "trace.json"
    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(x[0]).repeat()
    )
    repl.timeline(path, steps=2)
    repl.run(step, inputs, num_steps=8)

    assert 8 == inputs.num_steps == repl.num_steps_run
    document = json.loads(path.read_text())
    assert {1, 2} == {
        e["args"]["step"] for e in document["traceEvents"] if e["ph"] == "X"
    }
    assert document["otherData"]["cost"][0] > 0
    assert [{"offset_sec": 0.0, "bound_sec": 0.0}] == document["otherData"]["clocks"]


def test_step_functions_that_take_turns_are_both_recorded(pair, tmp_path):
    """The first step of each is traced, and not recorded."""
    repl, x = pair
    path = tmp_path / "trace.json"

    def other(x):
        with tf.name_scope("model/only"):
            return replicator.all_sum(tf.linalg.matmul(x, x))

    repl.timeline(path, steps=2)
    for _ in range(4):
        repl.run(step, x)
        repl.run(other, x)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["name"] for e in events if e.get("cat") == "compute"}

    assert {"model/only", "model/layer_0"} <= names
    assert max(e["dur"] for e in events if e.get("cat") == "step") < 1e6


def test_what_has_no_parts_is_not_recorded(pair, tmp_path):
    """A step without a layer runs as ever, and is not counted."""
    repl, x = pair

    def two():
        return tf.constant(2.0)

    repl.timeline(tmp_path / "trace.json", steps=1)
    for _ in range(6):
        assert 2.0 == float(repl.run(two)[0])
    assert repl.is_recording
    for _ in range(4):
        repl.run(step, x)

    assert not repl.is_recording


def test_all_workers_are_on_the_clock_of_the_first():
    """From the first event on, in microseconds; what overlaps has a row of its own."""

    def event(name, begin, end, row="a"):
        times = {"begin": begin, "end": end, "step": 1}
        return {"row": row, "name": name, **times, "kind": "compute"}

    document = timeline.document(
        [[event("x", 10.0, 11.0), event("y", 10.5, 12.0)], [event("z", 3.0, 4.0)]],
        [
            Clock(offset_sec=0.0, bound_sec=0.0),
            Clock(offset_sec=8.0, bound_sec=1e-4),
        ],
        [1.0, 1.1],
    )
    spans = {e["name"]: e for e in document["traceEvents"] if e["ph"] == "X"}
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in document["traceEvents"]
        if e["name"] == "thread_name"
    }

    assert (0.0, 0.5e6, 1e6) == tuple(spans[name]["ts"] for name in "xyz")
    assert ["a", "a (2)", "a"] == [
        names[spans[name]["pid"], spans[name]["tid"]] for name in "xyz"
    ]


def test_tasks_of_a_pipeline_are_in_one_row():
    """Sums of gradients, which run beside the next task, are in another one."""
    names = ["stage_0_B0", "stage_0_B0/sum", "stage_0_F1"]
    times = [(0.0, 1.0), (1.0, 3.0), (1.0, 2.0)]
    events = [
        {"row": "a", "name": name, "begin": a, "end": b, "step": 1, "kind": "compute"}
        for name, (a, b) in zip(names, times, strict=True)
    ]
    clock = Clock(offset_sec=0.0, bound_sec=0.0)
    document = timeline.document([events], [clock], [1.0])

    rows = [e["tid"] for e in document["traceEvents"] if e["ph"] == "X"]
    assert [0, 1, 0] == rows


def test_an_early_worker_waits_until_the_last_one_begins():
    """A collective of both from 2 to 3 s of one clock; the first began at 1 s."""

    def total(begin, end):
        times = {"begin": begin, "end": end, "step": 1}
        return {"row": "sums", "name": "total", **times, "kind": "collective"}

    document = timeline.document(
        [[total(1.0, 3.0)], [total(12.0, 13.0)]],
        [
            Clock(offset_sec=0.0, bound_sec=0.0),
            Clock(offset_sec=-10.0, bound_sec=1e-4),
        ],
        [1.0, 1.0],
    )
    spans = [
        (e["pid"], e["name"], e["ts"] / 1e6, e["dur"] / 1e6)
        for e in document["traceEvents"]
        if e["ph"] == "X"
    ]

    assert [
        (0, "waiting for a worker", 0.0, 1.0),
        (0, "total", 1.0, 1.0),
        (1, "total", 1.0, 1.0),
    ] == spans


def test_a_bucket_that_fills_waits_for_no_replica():
    """Only for the replica that has its last part of it last."""
    part = marks.Part(
        kind=marks.COLLECTIVE, name="sum", device="CPU:0", begin=(0, 1, 2, 3), end=(4,)
    )
    made = types.SimpleNamespace(
        marks=["replica_0/a", "replica_0/b", "replica_1/a", "replica_1/b", "sum"],
        parts=[part],
    )

    assert [(part, 5.0, 7.0, 8.0)] == marks.spans(made, [1.0, 5.0, 3.0, 7.0, 8.0])


@pytest.mark.parametrize(
    ("backend", "steps", "folder", "message"),
    [
        ("in_graph", 0, "", r"timeline\(steps=0\) must be an integer of 1 or more"),
        ("in_graph", True, "", r"timeline\(steps=True\) must be an integer"),
        (
            "in_graph",
            1,
            "no",
            r"timeline\(\) cannot write '.*': there is no '.*no'; use a",
        ),
        (
            "in_graph",
            1,
            ".",
            r"it is a folder; use a file in a folder that exists, such",
        ),
        ("single", 1, "", r"'single' has no timeline: .*; use in_graph, multi_worker,"),
    ],
)
def test_misuse_is_explained(tmp_path, backend, steps, folder, message):
    """Before a step runs."""
    repl = replicator.create(backend, num_replicas=1)
    path = tmp_path if folder == "." else tmp_path / folder / "trace.json"
    with pytest.raises((ValueError, replicator.ReplicatorError), match=message):
        repl.timeline(path, steps)


def test_what_is_no_path_is_refused():
    """With what it must be."""
    repl = replicator.create("in_graph", num_replicas=1)
    with pytest.raises(TypeError, match=r"timeline\(3\) must be the path of a file"):
        repl.timeline(3)
