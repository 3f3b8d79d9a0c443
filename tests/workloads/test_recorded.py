"""A program whose steps are recorded after its measured window."""

from __future__ import annotations

import json

import pytest
from small_programs import build

import replicator
from results.study import timeline
from workloads.recorded import RecordedProgram


def test_steps_are_recorded_before_the_program_is_checked(tmp_path):
    """Two of them, in six more steps, of which each reads its own batch."""
    path = tmp_path / "trace.json"
    original = build(
        "transformer",
        replicator.create("in_graph", num_replicas=2),
        data="tensorflow_source",
    )
    program = RecordedProgram(original, str(path), 2)
    program.run()
    checks = program.sanity()
    found = timeline.summary(json.loads(path.read_text()))
    rows = {
        event["args"]["replica"]
        for event in json.loads(path.read_text())["traceEvents"]
        if event.get("cat") == "compute"
    }

    assert all(check.is_passed for check in checks), checks
    assert 7 == original._num_steps
    assert {"replica_0", "replica_1"} == rows
    assert 2 == found["num_steps"]
    assert 0 < found["communication_sec"] < found["step_sec"]
    assert [c.name for c in checks] == [c.name for c in program.sanity()]
    assert 7 == original._num_steps


def test_a_backend_without_timelines_says_so(tmp_path):
    """Before a step runs."""
    original = build("transformer", replicator.create("single"))
    program = RecordedProgram(original, str(tmp_path / "trace.json"), 2)

    with pytest.raises(replicator.ReplicatorError, match=r"'single' has no timeline"):
        program.sanity()
