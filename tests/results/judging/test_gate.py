"""A gate judges every case against its baseline, and itself by twin and void turns."""

import dataclasses
import math
import re

import pytest
from changed_study import with_turns

from reports.words.judging import judgement
from results.errors import ResultsError
from results.judging import error_rates, gate, gate_metrics, judged_case
from results.statistics import group_sequential
from results.statistics.judge import Verdict
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
    rates = error_rates.of_gate(2, FEWEST, 0.05)
    few = judgement.headline(of_revisions(relay("a", revisions={BASE: 1.0}, repeats=5)))
    many = judgement.headline(of_revisions(relay("b", revisions={BASE: 1.0})))

    assert rates is not None
    assert "and passes with probability 0.0% at most" in few
    assert f"and passes with probability {rates.passes:.1%} at most" in many
    assert f"({rates.passes_dependent:.1%} where generations depend on each" in many


def test_the_worst_case_decides():
    """Regress before inconclusive, pass and improve."""
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
    """It says how many generations there are, and needs three."""
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


def test_studies_without_a_common_case_are_refused(relay):
    """Both are named with their cases."""
    with pytest.raises(ResultsError, match=r"no case is in both 'a' \(in_graph, 1 rep"):
        of_studies(relay("a"), relay("b", backends=("tf_mirrored",)))
