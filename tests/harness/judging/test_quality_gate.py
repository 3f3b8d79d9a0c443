"""A gate on quality trains both revisions with the same seeds; nothing else runs."""

import json
import re

import pytest

from harness import catalog
from harness.cli import exit_codes
from harness.cli.verbs import gate_request, gate_verb
from results.records.models import Order
from results.store.study_store import Store

pytestmark = pytest.mark.processes
GATE = (
    "gate",
    "--metric=top_1",
    "--workload=resnet50",
    "--preset=smoke",
    "--backends=in_graph",
    "--replicas=1",
    "--mode=weak",
    "--budget=20steps",
)


@pytest.mark.usefixtures("with_pages")
def test_a_change_that_learns_less_is_a_regression(gate, tmp_path):
    code, out, err = gate(
        "--baseline=learned_more",
        "--measure-equal",
        "--quality-repeats=5",
        "--study=q",
        "--format=json",
        of=GATE,
    )
    assert out, err
    data = json.loads(out)
    (case,) = data["cases"]
    specs = [trial.spec for trial in Store.open(tmp_path / "runs/q").read_plan().trials]

    assert exit_codes.REGRESSION == code, err
    assert pytest.approx(1.2) == case["slowdown"]["value"]
    assert 5 == case["slowdown"]["n"]
    assert all(spec.budget is not None for spec in specs)
    assert 5 == len({spec.seed for spec in specs})
    assert 10 == len(specs)
    assert (tmp_path / "runs/q/report/index.html").is_file()


@pytest.mark.parametrize(
    ("metric", "field", "number"),
    [("peak_memory", "repeats", 15), ("top_1", "quality_repeats", 5)],
)
def test_a_gate_in_sequence_has_repetitions_enough(metric, field, number):
    """To pass, unless another number is given: of processes, or of seeds."""
    rule = gate_request.make_rule(
        workload="resnet50", metric=metric, delta=None, alpha=0.05
    )
    request = gate_verb.of_gate(gate_request.GateRequest(workload="resnet50"), rule)

    assert number == getattr(request, field)
    assert Order.SEQUENTIAL is request.order


@pytest.mark.parametrize("workload", catalog.WORKLOADS)
def test_every_metric_of_a_published_report_can_be_judged(workload):
    """``top_5`` and ``recognised``, too; the tolerance is that of the metric."""
    for facts in catalog.metrics(catalog.workload(workload)):
        if not facts.is_of_window:
            rule = gate_request.make_rule(
                workload=workload, metric=facts.name, delta=None, alpha=0.05
            )
            assert rule.metric.is_cost is not facts.is_higher_better
            assert facts.tolerance == rule.delta


def test_a_stored_sweep_is_a_baseline_too(gate, tmp_path):
    sweep = ("sweep", *GATE[2:], "--repeats=1", "--rounds=1")
    gate(of=(*sweep, "--study=stored", "--quality-repeats=5"))
    gate("--budget=none", of=(*sweep, "--study=none"))
    code, out, err = gate("--baseline=stored", "--quality-repeats=5", of=GATE)
    refused, _, message = gate("--baseline=none", of=GATE)
    (study,) = (tmp_path / "runs").glob("gate-quality-*")

    assert exit_codes.OK == code, err
    assert re.search(r"in_graph x1, weak +\+0\.0 % +\S+ \S+ \S+ \S+ +5 +pass", out)
    assert re.search(r"PASS: top_1 against study stored", out)
    assert "the median over seeds (n) of how much worse quality runs end" in out
    assert "the runs of the two studies do not share their seeds" in out
    assert 5 == len(Store.open(study).read_plan().trials)
    assert exit_codes.USAGE == refused
    assert re.search(
        r"study 'none' has no quality run; run its sweep with --budget", message
    )


REFUSED = [
    (("--quality-repeats=2",), r"--quality-repeats 2 gives no verdict: .* use 5 or"),
    (("--repeats=4",), r"--repeats 4 has no effect with --metric top_1: .*--quality"),
    (
        ("--order=interleaved",),
        r"--order interleaved has no effect with --metric top_1: ",
    ),
    (("--time-budget=3min",), r"--time-budget 3 has no effect with order sequential"),
    (("--budget=none",), r"preset 'smoke' of resnet50 has no quality run with data"),
    (("--metric=throughput",), r"--budget 20steps has no effect with --metric thr"),
    (
        ("--metric=time_to_first_step", "--order=interleaved", "--budget=none"),
        r"--budget none has no effect with --metric time_to_first_step",
    ),
    (("--metric=joy",), r"unknown metric 'joy'; allowed are throughput, .*top_1"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_a_gate_on_quality_refuses(gate, tmp_path, arguments, message):
    code, _, err = gate("--baseline=same", *arguments, of=GATE)

    assert exit_codes.USAGE == code
    assert re.search(message, err)
    assert not (tmp_path / "runs").exists()
