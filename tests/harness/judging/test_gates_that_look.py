"""A gate without ``--repeats`` looks at its generations, and ends when it can."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from harness.cli import exit_codes
from harness.cli.verbs import gate_design, gate_request
from harness.errors import PlanError
from results.judging import gate_file, gate_metrics
from results.records.models import Order
from results.statistics import group_sequential
from results.store.study_store import Store

pytestmark = pytest.mark.processes
GATE = (
    "gate",
    "--workload=resnet50",
    "--preset=smoke",
    "--replicas=1",
    "--mode=weak",
    "--rounds=3",
    "--no-match",
)


def test_equal_code_passes_at_once(gate, written):
    """Exit code 0 in every format; nothing is measured, and nothing is written."""
    code, out, err = gate("--baseline=same", of=GATE)
    _, junit, _ = gate("--baseline=same", "--format=junit", of=GATE)

    assert exit_codes.OK == code, err
    assert "PASS: throughput against revision same (" in out
    assert "nothing was measured, since the code of both sides is the same" in out
    suite = ET.fromstring(junit)  # our own
    assert ("0", "0", "0") == tuple(
        suite.get(name) for name in ("failures", "errors", "skipped")
    )
    assert ["temporary"] == written()


def test_a_clear_slowdown_ends_at_the_first_look(gate, tmp_path):
    """After four generations of no peer; both sides lie beside each other."""
    code, out, err = gate(
        "--baseline=faster",
        "--measure-equal",
        "--study=g",
        "--format=json",
        of=GATE,
    )

    data = json.loads(out)
    assert exit_codes.REGRESSION == code, err
    assert 4 == data["looks"]["decided_after"] == data["looks"]["num_generations"]
    store = Store.open(tmp_path / "runs" / "g")
    plan = store.read_plan()
    assert {"in_graph"} == {trial.spec.backend for trial in plan.trials}
    assert plan.measuring.gate is not None
    assert group_sequential.planned_looks(0.05) == plan.measuring.gate.looks
    results = [trial.result for trial in store.trials() if trial.result is not None]
    first = [of for of in results if any(turn.is_sustained for turn in of.turns)]
    assert 8 == len(first)  # not the twins
    assert {4} == {sum(turn.is_sustained for turn in of.turns) for of in first}
    notes = gate_file.read(store).notes
    (check,) = (note for note in notes if note.startswith("a check of the turns:"))
    assert re.search(r"take [+-]\d+\.\d % \[.+\] longer \(n = 4\), over all", check)


def test_an_efficiency_needs_turns():
    """One after another, nothing of the machine cancels in a ratio of ratios."""
    rule = gate_metrics.Rule(metric=gate_metrics.EFFICIENCY, delta=0.05, alpha=0.05)
    request = gate_request.GateRequest(workload="resnet50", order=Order.SEQUENTIAL)

    with pytest.raises(
        PlanError, match=r"--metric efficiency needs cases that take .*; leave --order"
    ):
        gate_design.of_gate(request, rule)
    in_turns = gate_design.of_gate(
        request.model_copy(update={"order": Order.RELAY}), rule
    )
    assert gate_design.design_of(in_turns, rule, "main").looks
