"""The verdict says what was found, and admits what was not."""

import dataclasses
import io
import re

import pytest
import rich.console
from plain_text import plain

from reports import view
from reports.exports import text
from reports.page import build
from reports.page.sections import coverage, learning, overview, steps
from reports.words import brief, verdict
from results.figures import summary
from results.records.models import ScalingMode, TrialStatus

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG


def _judge(store):
    """All findings and all limits."""
    found = view.view_store(store)
    return (
        plain(" ".join(finding.sentence for finding in verdict.findings(found))),
        plain(" ".join(verdict.limits(found))),
    )


def _point(store):
    """The point of in_graph with two replicas, in weak scaling."""
    points = view.view_store(store).points_of(WEAK, "in_graph")
    return next(point for point in points if point.num_replicas == 2)


def test_findings_name_speedup_efficiency_and_the_peer(complete):
    """Numbers are those of the points, with intervals."""
    findings, limits = _judge(complete)
    interval = r"\[[\d.]+, [\d.]+\]"
    speedup = _point(complete).speedup

    assert re.match(
        rf"in_graph reaches 1\.\d\d. {interval} with 2 replicas \(weak scaling\), a "
        rf"parallel efficiency of \d\d % \[\d\d, \d\d\]\. ",
        findings,
    )
    assert re.search(
        rf"in_graph is 1\.\d\d. {interval} as fast as tf_mirrored at 2 replicas "
        r"\(weak scaling\)\.",
        findings,
    )
    assert (
        f"{speedup.value:.2f}\N{MULTIPLICATION SIGN} "
        f"[{speedup.low:.2f}, {speedup.high:.2f}]"
    ) in findings
    assert "tf_mirrored reaches" in findings
    assert "(strong scaling)" in findings
    assert "n = 3 repetitions" in limits
    assert "share its memory bandwidth" in limits


@pytest.mark.parametrize("is_planned", [True, False])
def test_nothing_measured_is_the_verdict(tmp_path, complete, is_planned):
    plan = complete.read_plan()
    empty = type(complete).create(tmp_path / "empty")
    empty.write_plan(plan if is_planned else plan.model_copy(update={"trials": ()}))
    findings, limits = _judge(empty)
    (headline,) = brief.judge(view.view_store(empty)).sentences

    assert 'role="img" aria-labelledby' not in build.build_report(empty)
    number = 18 if is_planned else 0
    assert f"Nothing was measured: none of {number} planned trials is ok." == headline
    assert findings == ""
    if is_planned:
        assert "18 planned trials of 18 gave no number (18 missing)" in limits


def test_one_backend_in_one_mode(make):
    """No comparison and no weak scaling: their section is empty."""
    store = make(backends=("in_graph",), modes=(STRONG,))
    findings, _ = _judge(store)

    assert findings.startswith("in_graph reaches 1.")
    assert "weak" not in findings
    assert "" == overview.render_backends(view.view_store(store))


def test_one_size_alone(make):
    """Only the baseline: backends are compared, nothing scales.

    ``tests/browser`` draws the pages of such a study, and of one repetition.
    """
    findings, _ = _judge(make(replicas=(1,)))

    assert "as fast as tf_mirrored at 1 replica (weak and strong scaling)" in findings
    assert "reaches" not in findings


def test_baseline_that_failed_is_named(make):
    failed = {("in_graph", WEAK, 1, k): TrialStatus.TIMEOUT for k in range(3)}
    store = make(modes=(WEAK,), statuses=failed)
    findings, limits = _judge(store)

    assert "in_graph reaches" not in findings
    assert findings.startswith("tf_mirrored reaches")
    assert (
        "in_graph has no speedup at 2 replicas (weak scaling): no trial of the baseline"
    ) in limits
    assert "3 planned trials of 12 gave no number (3 timeout)" in limits
    assert build.build_report(store).startswith("<!DOCTYPE html>")


def test_one_repetition_has_no_interval_and_no_winner(make):
    """N = 1: the comparison is inconclusive, whatever the ratio."""
    findings, _ = _judge(make(repeats=1))

    assert findings.count("so the comparison is inconclusive") == 2
    assert "is 1." not in findings
    assert "reaches" not in findings
    assert "[one repetition: no interval] is that of one repetition." in findings


def test_overlap_with_one_is_inconclusive(make):
    store = make(noise=0.5)
    findings, _ = _judge(store)

    assert re.search(r"comparison of in_graph and \w+ at .* is inconclusive", findings)
    assert re.search(r"the ratio \S+ \[[^]]+\] includes 1\.", findings)
    assert re.search(r"Whether in_graph gains .* is inconclusive: the", findings)
    assert "inconclusive: the" in overview.render_findings(view.view_store(store))


def test_one_generation_is_shown_and_not_judged(complete):
    """Its intervals exclude "no difference", but only for its own processes."""
    seen = view.view_store(complete)

    def own(estimate):
        return estimate and dataclasses.replace(estimate, is_conclusive=False)

    points = tuple(
        dataclasses.replace(point, speedup=own(point.speedup)) for point in seen.points
    )
    comparisons = tuple(
        dataclasses.replace(item, ratio=own(item.ratio), holds=False)
        for item in seen.comparisons
    )
    findings = verdict.findings(
        dataclasses.replace(seen, points=points, comparisons=comparisons)
    )

    assert len(findings) > 1
    for finding in findings:
        assert finding.figure == "inconclusive"
        assert "holds for these processes only (one run)." in finding.sentence
        assert "includes" not in finding.sentence


def test_oversubscribed_points_are_no_part_of_the_verdict(broken):
    """Four replicas on two cores are shown, and kept out."""
    findings, limits = _judge(broken)

    assert "4 replicas" not in findings
    assert "4 replicas are oversubscribed" in limits


def test_different_machines_are_a_warning(make):
    store = make(fingerprints=("aaaa", "bbbb"))
    _, limits = _judge(store)
    section = coverage.render_machine(view.view_store(store))

    assert "2 different environments (fingerprints differ)" in limits
    assert "Environment <code>bbbb</code>" in section


def test_corrupt_record_is_named_in_the_report(tmp_path, synthetic):
    """By trial and file, without the path of this machine."""
    shape = synthetic.Shape(backends=("in_graph",), modes=(STRONG,), repeats=2)
    store = synthetic.make_store(tmp_path, shape)
    trial_id = store.trial_ids()[0]
    (store.trial_dir(trial_id) / "result.json").write_text("{")
    _, limits = _judge(store)
    page = build.build_report(store)

    assert "1 record could not be read" in limits
    assert f"<code>{trial_id}/result.json</code>: not JSON" in page
    assert str(tmp_path) not in page


def test_missing_quality_and_memory_are_not_drawn(tmp_path, synthetic):
    """No quality was recorded; zero bytes mean that memory could not be read."""
    store = synthetic.make_store(tmp_path, synthetic.Shape(is_evaluated=False))
    for trial in store.trials():
        (rank,) = trial.result.ranks
        ranks = (rank.model_copy(update={"peak_memory_bytes": 0}),)
        result = trial.result.model_copy(update={"ranks": ranks})
        store.write_result(trial.trial_id, result)
    seen = view.view_store(store)
    beginning = steps.render_startup(seen)

    points = summary.summarize(seen.study)["points"]
    assert {None} == {point["peak_memory"] for point in points}
    assert all(point["time_to_first_step"]["value"] > 0 for point in points)
    assert learning.render_quality(seen) == ""
    assert 'id="memory-title"' not in beginning
    assert 'id="first-step-title"' in beginning


def test_quality_says_how_few_steps_it_is_after(sequence):
    """Three warmup and sixteen measured steps train as well."""
    section = learning.render_quality(sequence)

    assert "Measured after only 19 training steps" in section
    assert "Wilson score interval" in section


def test_terminal_summary_has_verdict_table_and_unknowns(broken):
    """Brackets survive: they are intervals, not markup."""
    stream = io.StringIO()
    text.print_summary(broken, rich.console.Console(file=stream, width=200))
    shown = plain(stream.getvalue())

    assert re.search(
        r"in_graph\W+weak\W+2\W+46\.8\W+1\.81.\W+91 %\W+\d\d %\W+3/3\s*\n"
        r"\s+\[[\d.]+, [\d.]+\]\s+\[1\.77, 1\.85\]\s+\[89, 93\]",
        shown,
    )
    assert re.search(
        r"tf_mirrored\W+weak\W+4 \*\W+30\.2\W+1\.23.\W+31 %\W+\d\d %\W+1/3", shown
    )
    assert "* oversubscribed: more replicas than cores" in shown
    assert "5 planned trials of 33 gave no number" in shown


def test_a_busy_machine_is_said(tmp_path, synthetic, complete):
    store = synthetic.make_store(tmp_path)
    for share, trial in zip((0.31, 0.07), list(store.trials())[:2], strict=True):
        env = trial.env.model_copy(update={"foreign_cpu_fraction": share})
        store.write_env(trial.trial_id, env)

    assert "not quiet" not in _judge(complete)[1]
    assert re.search(
        r"not quiet: others used up to 31 % of CPU .* in 2 of .* more than 5 %",
        _judge(store)[1],
    )


@pytest.mark.parametrize(
    ("target", "clause"),
    [
        (lambda _: 0.5, r"\], above the target of 50 %\."),
        (lambda _: 1.0, r"\], below the target of 100 %\."),
        # Its interval includes the target: neither met nor missed.
        (
            lambda efficiency: efficiency.value,
            r"\]; whether it meets the target of \d\d % is inconclusive",
        ),
        (lambda _: None, r"\]\."),
    ],
    ids=["above", "below", "inconclusive", "no target"],
)
def test_an_efficiency_is_tested_against_the_target_of_the_study(
    tmp_path, synthetic, complete, target, clause
):
    """Not only whether replicas gain something, but whether they gain enough."""
    store = synthetic.make_store(tmp_path / "study")
    plan = store.read_plan()
    update = {"efficiency_target": target(_point(complete).efficiency)}
    measuring = plan.measuring.model_copy(update=update)
    store.write_plan(plan.model_copy(update={"measuring": measuring}))
    findings, _ = _judge(store)

    assert re.search(
        rf"parallel efficiency of \d\d % \[\d\d, \d\d{clause}", findings
    ), findings
