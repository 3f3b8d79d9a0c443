"""A gate judges every case against its baseline, and itself by twin and void turns."""

import dataclasses
import math
import re
from types import SimpleNamespace

import pytest
from changed_study import with_turns

from reports.words import judgement
from results.errors import ResultsError
from results.judging import gate, gate_metrics, judged_case, paired_gate, quality_gate
from results.records import quality_records
from results.records.models import MetricFacts
from results.statistics import estimates, group_sequential
from results.statistics.group_sequential import Verdict
from results.study.cases import load_study

BASE = "1234567890ab"
NOISE = 0.008
"""Far below the 5 % that matter."""
FEWEST = group_sequential.fewest_to_pass(0.05)


@pytest.fixture
def relay(tmp_path, synthetic):
    def make(name="s", **fields):
        defaults = {
            "backends": ("in_graph",),
            "modes": (synthetic.WEAK,),
            "repeats": FEWEST,
            "num_rounds": 12,
            "noise": NOISE,
            "is_evaluated": False,
            "name": name,
        }
        shape = synthetic.Shape(**(defaults | fields))
        study = load_study(synthetic.make_store(tmp_path / name, shape))
        return with_turns(study, lambda _: {"foreign_cpu_fraction": lambda _: 0.0})

    return make


def rule_of(metric):
    of = gate_metrics.metric_of(metric)
    return gate_metrics.Rule(metric=of, delta=0.05, alpha=0.05)


def of_revisions(study, metric="throughput"):
    return gate.of_revisions(study, rule_of(metric), baseline="main")


def of_studies(study, stored):
    return gate.of_studies(study, stored, rule_of("throughput"), baseline="study b")


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, Verdict.PASS), (1 / 1.1, Verdict.REGRESS), (1.2, Verdict.IMPROVE)],
)
def test_the_verdict_is_about_the_slowdown_against_the_revision(relay, factor, verdict):
    """A baseline whose steps are shorter makes this tree the slower one."""
    judged = of_revisions(relay(revisions={BASE: factor}, twin_factor=1.0))

    assert [verdict] * 2 == [case.judgement.verdict for case in judged.cases]
    assert verdict is judged.verdict
    assert ["in_graph x1, weak", "in_graph x2, weak"] == [
        case.name for case in judged.cases
    ]
    for case in judged.cases:
        slowdown = case.judgement.slowdown
        assert slowdown.low <= 1 / factor * 1.01
        assert slowdown.high >= 1 / factor * 0.99
        assert slowdown.n == FEWEST


def _efficiency(study):
    rule = gate_metrics.Rule(metric=gate_metrics.EFFICIENCY, delta=0.05, alpha=0.05)
    return gate.of_revisions(study, rule, baseline="main")


@pytest.mark.parametrize(
    ("slower", "verdict"),
    [
        ((1.0, 1.0), Verdict.PASS),
        # Slower as a whole: the throughput regresses, and it scales as it did.
        ((1.1, 1.1), Verdict.PASS),
        ((1.0, 1.1), Verdict.REGRESS),
        # One replica became faster: throughput never regresses, efficiency does.
        ((0.9, 1.0), Verdict.REGRESS),
    ],
)
def test_an_efficiency_is_judged_by_what_its_baseline_does_not_lose(
    relay, slower, verdict
):
    """One case of two replicas; known factors of this tree by size."""

    def change(entry):
        factor = 1.0 if entry.spec.revision else slower[entry.spec.num_replicas - 1]
        return {
            "end_ns": lambda turn: (
                turn.start_ns + round((turn.end_ns - turn.start_ns) * factor)
            )
        }

    study = with_turns(relay(revisions={BASE: 1.0}, twin_factor=None), change)
    judged = _efficiency(study)
    (case,) = judged.cases

    assert "in_graph x2, weak" == case.name
    assert verdict is case.judgement.verdict is judged.verdict
    ratio = slower[1] / slower[0]
    slowdown = case.judgement.slowdown
    assert slowdown.low <= ratio * 1.01
    assert slowdown.high >= ratio * 0.99


def test_an_efficiency_needs_a_baseline_in_the_same_rounds(relay):
    """One line says what to measure, or against what."""
    alone = relay("alone", replicas=(2,), revisions={BASE: 1.0})
    with pytest.raises(ResultsError, match="such as --replicas 1,2"):
        _efficiency(alone)
    rule = gate_metrics.Rule(metric=gate_metrics.EFFICIENCY, delta=0.05, alpha=0.05)
    stored = relay("b")
    with pytest.raises(ResultsError, match="use gate --baseline with a revision"):
        gate.of_studies(relay("a"), stored, rule, baseline="study b")


def test_ordinary_figures_leave_the_other_revision_out(relay):
    """Points, comparisons and the report are of this tree; the rest is beside them."""
    study = relay(revisions={BASE: 1.0})

    assert {""} == {case.spec.revision for case in study.cases}
    assert {BASE} == {case.spec.revision for case in study.other_revisions}
    assert f"in_graph, 1 replica x 8, revision {BASE}" == study.other_revisions[0].label


@pytest.mark.parametrize("factor", [1.0, 1 / 1.3])
@pytest.mark.parametrize("repeats", [5, FEWEST - 1])
def test_too_few_generations_regress_and_never_pass(relay, factor, repeats):
    """What slows one in five may be in none of them; notes say how many it takes."""
    judged = of_revisions(relay(revisions={BASE: factor}, repeats=repeats))
    expected = Verdict.INCONCLUSIVE if factor == 1 else Verdict.REGRESS

    assert expected is judged.verdict
    assert f"{repeats} generations cannot pass" in judgement.gate_text(judged)
    assert f"give --repeats {FEWEST}" in judgement.gate_text(judged)


@pytest.mark.parametrize(
    "write", [judgement.gate_text, judgement.gate_markdown, judgement.gate_junit]
)
@pytest.mark.parametrize("share", ["none", "some"])
def test_load_that_was_not_recorded_is_not_quiet(relay, write, share):
    """Of any turn: equal programs do not pass; slower ones regress all the same."""

    def forget(entry):
        is_known = share == "some" and entry.spec.repetition_index
        return {"foreign_cpu_fraction": lambda _: 0.0 if is_known else None}

    equal, slower = (
        of_revisions(with_turns(relay(name, revisions={BASE: factor}), forget))
        for name, factor in (("a", 1.0), ("b", 1 / 1.3))
    )

    assert Verdict.INCONCLUSIVE is equal.verdict
    assert Verdict.REGRESS is slower.verdict
    for judged in (equal, slower):
        assert re.search(
            r"caution: .*load was not recorded in \d+ of \d+ turns", write(judged)
        )


@pytest.mark.parametrize(
    "write", [judgement.gate_text, judgement.gate_markdown, judgement.gate_junit]
)
def test_other_work_beside_a_gate_in_sequence_is_said(relay, write):
    """As the page does; there are no turns that could be void."""
    study = relay(num_rounds=0, revisions={BASE: 1.0})

    def beside_others(entry):
        env = entry.trial.env.model_copy(update={"foreign_cpu_fraction": 0.26})
        trial = dataclasses.replace(entry.trial, env=env)
        return dataclasses.replace(entry, trial=trial)

    busy = dataclasses.replace(study, entries=tuple(map(beside_others, study.entries)))
    judged = of_revisions(busy, "peak_memory")

    said = rf"caution: others used up to 26\s% of CPU time in {len(busy.entries)} of"
    assert re.search(said, write(judged))


def test_the_first_line_has_the_error_rates_of_such_a_gate(relay):
    """Simulated, of as many cases and generations; not what was asked for."""
    rates = paired_gate.of_gate(2, FEWEST, 0.05)
    few = judgement.headline(of_revisions(relay("a", revisions={BASE: 1.0}, repeats=5)))
    many = judgement.headline(of_revisions(relay("b", revisions={BASE: 1.0})))

    assert rates is not None
    assert "and passes with probability 0.0% at most" in few
    assert f"and passes with probability {rates.passes:.1%} at most" in many
    assert f"({rates.passes_dependent:.1%} where generations depend on each" in many


def test_the_worst_case_decides():
    order = list(judged_case.WORST_FIRST)

    assert [
        Verdict.REGRESS,
        Verdict.INCONCLUSIVE,
        Verdict.PASS,
        Verdict.IMPROVE,
    ] == order


def test_a_twin_that_differs_from_its_case_leaves_no_verdict(relay):
    """A design that finds a difference between equal programs can find any."""
    judged = of_revisions(relay(revisions={BASE: 1.0}, twin_factor=1.3))

    assert judged.verdict is None
    assert re.search(
        r"twin of in_graph x2, weak differs .*ratio 0\.7\d", judged.why_unfit
    )


def test_many_void_turns_leave_no_verdict(relay):
    """Whatever the valid turns say."""
    judged = of_revisions(relay(revisions={BASE: 1 / 1.5}, void_share=0.5))

    assert judged.verdict is None
    assert re.search(
        r"\d+ of \d+ turns are void \(other processes .*, more than 30%",
        judged.why_unfit,
    )


def test_a_case_with_one_generation_makes_the_whole_inconclusive(relay):
    judged = of_revisions(relay(revisions={BASE: 1.0}, repeats=1))

    assert Verdict.INCONCLUSIVE is judged.verdict
    assert re.search(
        r"1 generation\(s\) have both, a verdict needs 3", judged.cases[0].reason
    )


def test_failed_trials_are_named(relay, synthetic):
    timeout = synthetic.TrialStatus.TIMEOUT
    statuses = {("in_graph", synthetic.WEAK, 2, 1): timeout}
    judged = of_revisions(relay(revisions={BASE: 1.0}, statuses=statuses))

    assert 2 == len(judged.failures)
    assert re.search(
        rf"in_graph x2 of {BASE}, repetition 1: timeout: no end",
        "\n".join(judged.failures),
    )
    assert [FEWEST, FEWEST - 1] == [case.judgement.slowdown.n for case in judged.cases]


@pytest.mark.parametrize("metric", ["time_to_first_step", "peak_memory"])
def test_costs_are_judged_process_by_process(relay, metric):
    """Equal programs differ by their noise only."""
    judged = of_revisions(relay(revisions={BASE: 1.0}, repeats=8), metric)

    assert judged.verdict in (Verdict.PASS, Verdict.IMPROVE, Verdict.INCONCLUSIVE)
    assert pytest.approx(1, abs=0.06) == judged.cases[0].judgement.slowdown.value


def test_a_stored_study_is_a_weaker_baseline(relay):
    """Two groups: the interval holds the spread of both, and says so."""
    here = relay("a", repeats=8)
    judged = of_studies(here, relay("b", repeats=6, noise=0.007))
    paired = of_revisions(relay("c", repeats=8, revisions={BASE: 1.0}))

    assert judged.is_weaker
    assert () == judged.differences
    assert Verdict.PASS is judged.verdict
    slowdown = judged.cases[0].judgement.slowdown
    assert 6 == slowdown.n
    assert "not measured in the same rounds" in slowdown.method
    other = paired.cases[0].judgement.slowdown
    plain = math.log(other.high / other.low) / paired.paired.widening
    assert math.log(slowdown.high / slowdown.low) > plain


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fingerprints": ("00" * 10,)}, "machine fingerprint: 5f0c3a.* / 0000"),
        ({"workload_version": "2"}, "workload version: '1' / '2'"),
        ({"num_rounds": 0}, "order: relay / sequential"),
    ],
)
def test_a_study_that_is_not_comparable_never_passes(relay, fields, message):
    """The difference is named; a regression remains one."""
    judged = of_studies(relay("a"), relay("b", **fields))

    assert re.search(message, "; ".join(judged.differences))
    assert judged.verdict in (Verdict.INCONCLUSIVE, Verdict.REGRESS)
    allowed = dataclasses.replace(judged, differences=())
    assert allowed.verdict.is_pass


METRIC = gate_metrics.THROUGHPUT


@pytest.fixture
def compared(relay):
    """Returns the comparison of a relay of two backends with one of other fields."""

    def compare_with(**fields):
        pair = {"backends": ("in_graph", "tf_mirrored"), "repeats": 4, "num_rounds": 10}
        return quality_gate.of_studies(
            relay("x", **pair), relay("y", **pair | fields), METRIC
        )

    return compare_with


def test_two_studies_are_two_groups(compared):
    """A weaker comparison; settings that differ are what is compared."""
    found = compared(repeats=5, noise=0.009)

    assert found.is_weaker
    assert () == found.differences
    for row in found.rows:
        assert "not measured in the same rounds" in row.difference.ratio.method
        assert 4 == row.difference.ratio.n
        assert row.difference.ratio.low < 1 < row.difference.ratio.high


def test_settings_that_differ_are_named(compared):
    assert "order: relay / sequential" in compared(num_rounds=0).settings


def test_a_study_of_one_generation_is_compared_without_a_test(compared):
    """Nothing is known about its spread."""
    found = compared(repeats=1)

    assert found.rows == found.without_test


def test_two_groups_agree_with_the_textbook():
    """Welch's test of two small samples, computed by scipy."""
    from scipy import stats

    first, second = [0.11, 0.13, 0.02, 0.08], [0.01, -0.02, 0.04]
    expected = stats.ttest_ind(first, second, equal_var=False)
    found = estimates.two_groups(first, second)

    assert pytest.approx(expected.pvalue) == found.p_value()
    assert pytest.approx(expected.df) == found.degrees_of_freedom
    low, high = expected.confidence_interval(0.9)
    assert pytest.approx((low, high)) == (
        found.centre - found.half_width(0.9),
        found.centre + found.half_width(0.9),
    )


def test_equal_groups_without_spread_do_not_differ():
    assert 1.0 == estimates.two_groups([0.1, 0.1], [0.1, 0.1]).p_value()
    assert 0.0 == estimates.two_groups([0.2, 0.2], [0.1, 0.1]).p_value()
    assert math.isfinite(estimates.two_groups([0.1, 0.1], [0.1, 0.1]).half_width())


def test_a_group_of_one_generation_has_no_interval():
    found = estimates.two_groups([0.1, 0.2], [0.1])

    assert (None, None, 1) == (found.half_width(), found.p_value(), found.n)


def test_metrics_are_named_in_the_message():
    """One without ratios, and one that a gate cannot judge: a rate of a window."""
    declared = [
        MetricFacts(**facts)
        for workload in ("sngan", "d4pg")
        for facts in quality_records.of_workload(workload)
    ]
    with pytest.raises(ResultsError, match=r"metric 'fid'; allowed are thr.* by seed"):
        gate_metrics.metric_of("fid")
    message = r"metric 'policy_lag'; allowed are thr.* learns fid, kid, "
    with pytest.raises(ResultsError, match=message):
        gate_metrics.metric_of_gate("policy_lag", declared)
    with pytest.raises(ResultsError, match="of what this workload learns nothing"):
        gate_metrics.metric_of_gate("fid", [])
    assert re.fullmatch(r"\w+", METRIC.name)


def case_of(*values):
    return SimpleNamespace(
        entries=[
            SimpleNamespace(
                state="ok",
                trial=SimpleNamespace(
                    result=SimpleNamespace(
                        window_metrics=[SimpleNamespace(name="bytes", value=value)]
                    )
                ),
            )
            for value in values
        ]
    )


@pytest.mark.parametrize(
    ("before", "after", "verdict", "rise"),
    [
        (1000, 1000, Verdict.PASS, 0.0),
        (1000, 1001, Verdict.REGRESS, 0.001),
        (1000, 900, Verdict.IMPROVE, -0.1),
        (0, 0, Verdict.PASS, None),
        (0, 1, Verdict.REGRESS, None),
    ],
)
def test_any_rise_is_a_regression(before, after, verdict, rise):
    """However small: equal code counts the same."""
    found, reason = judged_case.count_of(
        case_of(after, after), case_of(before, before), "bytes"
    )

    assert found is not None
    assert "" == reason
    assert (verdict, 2) == (found.verdict, found.n)
    assert rise == (None if found.rise is None else pytest.approx(found.rise))


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        ((5, 5), (5, 6), "it varies between runs of the baseline, from 5 to 6, so it"),
        ((4, 5), (5, 5), "it varies between runs of this tree, from 4 to 5, so it is"),
        ((5,), (6,), "1 run(s) of a side have it, and 2 show whether it is the same"),
        ((), (6, 6), "no run of this tree has it"),
    ],
)
def test_what_is_no_count_has_no_verdict(here, there, reason):
    """It is never taken for one, nor averaged."""
    found, why = judged_case.count_of(case_of(*here), case_of(*there), "bytes")

    assert found is None
    assert reason in why
