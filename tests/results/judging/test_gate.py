"""A gate judges every case against its baseline, and itself by A/A control and
discarded blocks. On quality it judges seeds in pairs, relative to what the baseline
learned.
"""

import dataclasses
import math
import re

import numpy as np
import pytest
from study_files import with_blocks, with_environments, with_results, with_specs
from synthetic import REVISION

from reports import GATE_FORMATS, compare_studies, gate_record
from results import Program, QualityMetric, ResultsError, judging, load_study
from results.statistics import Verdict, fewest_to_pass

THROUGHPUT = judging.metric_of("throughput")
FEWEST = fewest_to_pass(0.05)
WRITERS = [GATE_FORMATS[name] for name in ("text", "markdown", "junit")]


@pytest.fixture(scope="module")
def interleaved(make, synthetic):
    """Returns a function that makes the study of a gate; its blocks are quiet."""
    defaults = {"repeats": FEWEST, "num_rounds": 12, "aa_factor": None}
    defaults |= {"revisions": {}}

    def measured(name="s", **fields):
        shape = synthetic.gate_shape(**defaults | {"name": name} | fields)
        study = load_study(make(shape))
        return with_blocks(study, lambda _: {"foreign_cpu_fraction": lambda _: 0.0})

    return measured


def rule_of(study, metric):
    of = judging.metric_of_gate(metric, study.plan.metrics)
    return judging.Rule(metric=of, delta=0.05, alpha=0.05)


def of_revisions(study, metric="throughput"):
    return judging.judge_revisions(study, rule_of(study, metric), baseline="main")


def of_studies(study, stored, metric="throughput"):
    rule = rule_of(study, metric)
    return judging.judge_studies(study, stored, rule, baseline="study b")


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, Verdict.PASS), (1 / 1.1, Verdict.REGRESS), (1.2, Verdict.IMPROVE)],
)
def test_the_verdict_is_about_the_slowdown_against_the_revision(
    interleaved, factor, verdict
):
    study = interleaved(revisions={REVISION: factor}, aa_factor=1.0)
    judged = of_revisions(study)

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
    # Ordinary figures leave the other revision out.
    assert {""} == {case.spec.revision for case in study.cases}
    assert {REVISION} == {case.spec.revision for case in study.other_revisions}
    other, *_ = study.other_revisions
    assert f"in_graph, 1 replica x 8, revision {REVISION}" == other.label


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
    interleaved, slower, verdict
):
    def change(entry):
        factor = 1.0 if entry.spec.revision else slower[entry.spec.num_replicas - 1]
        return {
            "end_ns": lambda block: (
                block.start_ns + round((block.end_ns - block.start_ns) * factor)
            )
        }

    study = with_blocks(interleaved(revisions={REVISION: 1.0}), change)
    judged = of_revisions(study, "efficiency")
    (case,) = judged.cases
    slowdown, ratio = case.judgement.slowdown, slower[1] / slower[0]

    assert "in_graph x2, weak" == case.name
    assert verdict is case.judgement.verdict is judged.verdict
    assert slowdown.low <= ratio * 1.01
    assert slowdown.high >= ratio * 0.99


def test_an_efficiency_needs_a_baseline_in_the_same_rounds(interleaved):
    alone = interleaved("alone", replicas=(2,), revisions={REVISION: 1.0})
    with pytest.raises(ResultsError, match="such as --replicas 1,2"):
        of_revisions(alone, "efficiency")
    with pytest.raises(ResultsError, match="use gate --baseline with a revision"):
        of_studies(interleaved("a"), interleaved("b"), "efficiency")


@pytest.mark.parametrize("factor", [1.0, 1 / 1.3])
@pytest.mark.parametrize("repeats", [FEWEST - 1])
def test_too_few_repetitions_regress_and_never_pass(interleaved, factor, repeats):
    judged = of_revisions(interleaved(revisions={REVISION: factor}, repeats=repeats))
    expected = Verdict.INCONCLUSIVE if factor == 1 else Verdict.REGRESS
    text = GATE_FORMATS["text"](gate_record(judged))

    assert expected is judged.verdict
    assert f"{repeats} runs cannot pass" in text
    assert f"give --repeats {FEWEST}" in text
    assert "and passes with probability 0.0% at most" in gate_record(judged).headline


def test_load_that_was_not_recorded_is_not_quiet(interleaved):
    def forget(entry):
        is_known = entry.spec.repetition_index
        return {"foreign_cpu_fraction": lambda _: 0.0 if is_known else None}

    for factor, verdict in ((1.0, Verdict.INCONCLUSIVE), (1 / 1.3, Verdict.REGRESS)):
        judged = of_revisions(
            with_blocks(interleaved(revisions={REVISION: factor}), forget)
        )
        assert verdict is judged.verdict
        for write in WRITERS:
            assert re.search(
                r"caution: .*load was not recorded in \d+ of \d+ blocks",
                write(gate_record(judged)),
            )


def test_other_work_beside_a_gate_in_sequence_is_said(interleaved):
    study = interleaved(num_rounds=0, revisions={REVISION: 1.0}, repeats=5)

    busy = with_environments(study, lambda _: {"foreign_cpu_fraction": 0.26})
    judged = of_revisions(busy, "peak_memory")

    said = rf"caution: others used up to 26\s% of CPU time in {len(busy.entries)} of"
    assert all(re.search(said, write(gate_record(judged))) for write in WRITERS)


def test_the_first_line_has_the_error_rates_of_such_a_gate(interleaved):
    rates = judging.stated_rates(2, FEWEST, 0.05)
    text = gate_record(of_revisions(interleaved(revisions={REVISION: 1.0}))).headline

    assert f"and passes with probability {rates.passes:.1%} at most" in text
    assert f"({rates.passes_dependent:.1%} where runs depend on each" in text


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        # A design that finds a difference between equal programs can find any.
        (
            {"revisions": {REVISION: 1.0}, "aa_factor": 1.3},
            r"A/A control of in_graph x2, weak",
        ),
        # Whatever the valid blocks say.
        (
            {"revisions": {REVISION: 1 / 1.5}, "discarded_share": 0.5},
            r"\d+ of \d+ blocks are discarded \(other processes .*, more than 30%",
        ),
    ],
)
def test_a_measurement_that_cannot_be_trusted_has_no_verdict(
    interleaved, fields, reason
):
    judged = of_revisions(interleaved(**fields))

    assert judged.verdict is None
    assert re.search(reason, judged.why_unfit)


def test_the_worst_case_decides(interleaved):
    verdicts = [Verdict.REGRESS, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.IMPROVE]
    judged = of_revisions(interleaved(revisions={REVISION: 1.0}))
    case, *_ = judged.cases
    cases = []
    for verdict in verdicts:
        judgement_of_case = dataclasses.replace(case.judgement, verdict=verdict)
        cases.append(dataclasses.replace(case, judgement=judgement_of_case, others={}))

    for index, expected in enumerate(verdicts):
        worst = dataclasses.replace(judged, cases=tuple(reversed(cases[index:])))
        assert expected is worst.verdict


def test_a_case_with_one_repetition_makes_the_whole_inconclusive(interleaved):
    judged = of_revisions(interleaved(revisions={REVISION: 1.0}, repeats=1))

    assert Verdict.INCONCLUSIVE is judged.verdict
    assert re.search(r"1 run\(s\) have both, a verdict needs 3", judged.cases[0].reason)


def test_failed_trials_are_named(interleaved, synthetic):
    timeout = synthetic.TrialStatus.TIMEOUT
    statuses = {("in_graph", synthetic.WEAK, 2, 1): timeout}
    judged = of_revisions(interleaved(revisions={REVISION: 1.0}, statuses=statuses))

    assert 2 == len(judged.failures)
    assert re.search(
        rf"in_graph x2 of {REVISION}, repetition 1: timeout: no end",
        "\n".join(judged.failures),
    )
    assert [FEWEST, FEWEST - 1] == [case.judgement.slowdown.n for case in judged.cases]


def test_a_stored_study_is_a_weaker_baseline(interleaved):
    judged = of_studies(interleaved("a"), interleaved("b", repeats=6, noise=0.007))
    paired = of_revisions(interleaved(revisions={REVISION: 1.0}))
    slowdown, other = (of.cases[0].judgement.slowdown for of in (judged, paired))
    plain = math.log(other.high / other.low) / paired.paired.widening

    assert judged.is_weaker
    assert () == judged.differences
    assert Verdict.PASS is judged.verdict
    assert 6 == slowdown.n
    assert "not measured in the same rounds" in slowdown.method
    assert math.log(slowdown.high / slowdown.low) > plain


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fingerprints": ("00" * 10,)}, "machine fingerprint: 5f0c3a.* / 0000"),
        ({"num_rounds": 0}, "order: interleaved / sequential"),
    ],
)
def test_a_study_that_is_not_comparable_never_passes(interleaved, fields, message):
    stored = interleaved("b", **fields)
    judged = of_studies(interleaved("a"), stored)

    assert re.search(message, "; ".join(judged.differences))
    assert judged.verdict in (Verdict.INCONCLUSIVE, Verdict.REGRESS)
    assert dataclasses.replace(judged, differences=()).verdict.is_pass


def test_two_studies_are_two_groups(interleaved):
    pair = {"backends": ("in_graph", "tf_mirrored"), "num_rounds": 10}
    first = interleaved("x", repeats=4, **pair)
    second = interleaved("y", repeats=5, noise=0.009, **pair)
    found = compare_studies(first, second, THROUGHPUT)

    assert () == found.reasons
    in_sequence = interleaved("z", repeats=4, **pair | {"num_rounds": 0})
    other = compare_studies(first, in_sequence, THROUGHPUT)
    assert "order: interleaved / sequential" in other.settings
    for row in found.rows:
        ratio = row.estimate
        assert "not measured in the same rounds" in ratio.method
        assert 4 == ratio.n
        assert ratio.low < 1 < ratio.high


def test_metrics_are_named_in_the_message(interleaved):
    declared = interleaved("a").plan.metrics
    for call, message in (
        (
            lambda: judging.metric_of("fid"),
            r"metric 'fid'; allowed are thr.* by seed",
        ),
        (
            lambda: judging.metric_of_gate("policy_lag", declared),
            r"metric 'policy_lag'; allowed are thr.* learns .*fid, kid",
        ),
        (
            lambda: judging.metric_of_gate("fid", []),
            "of what this workload learns nothing",
        ),
    ):
        with pytest.raises(ResultsError, match=message):
            call()


PROGRAM = Program(
    command="a {replicas}", metric="client", unit="rows", counts=("bytes=x",)
)


@pytest.fixture
def counted(interleaved):
    """Returns a function that judges what runs of a program counted, on both sides."""

    def judge(here, there):
        study = interleaved(revisions={REVISION: 1.0}, repeats=2, replicas=(1,))

        def count(entry):
            values = there if entry.spec.revision else here
            metrics = (
                QualityMetric(
                    name="bytes",
                    value=value,
                    unit="1",
                    num_examples=1,
                    low=value,
                    high=value,
                    method="counted",
                )
                for value in values[entry.spec.repetition_index :][:1]
            )
            return {"window_metrics": tuple(metrics)}

        study = with_results(with_specs(study, program=PROGRAM), count)
        (found,) = of_revisions(study).counts
        return found

    return judge


@pytest.mark.parametrize(
    ("before", "after", "verdict", "rise"),
    [
        (1000, 1000, Verdict.PASS, 0.0),
        (1000, 1001, Verdict.REGRESS, 0.001),
        (1000, 900, Verdict.IMPROVE, -0.1),
        (0, 1, Verdict.REGRESS, None),
    ],
)
def test_any_rise_is_a_regression(counted, before, after, verdict, rise):
    found = counted((after, after), (before, before))

    assert ("", verdict, 2) == (found.reason, found.count.verdict, found.count.n)
    assert rise == (None if rise is None else pytest.approx(found.count.rise))
    assert found.verdict is verdict


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        ((5, 5), (5, 6), "it varies between runs of the baseline, from 5 to 6, so it"),
        ((5,), (6,), "1 run(s) of a side have it, and 2 show whether it is the same"),
        ((), (6, 6), "no run of this tree has it"),
    ],
)
def test_what_is_no_count_has_no_verdict(counted, here, there, reason):
    found = counted(here, there)

    assert (None, None) == (found.count, found.verdict)
    assert reason in found.reason


NUM_SEEDS = 6


@pytest.fixture
def learned(tmp_path, synthetic):
    def make(name="s", **fields):
        defaults = {
            "backends": ("in_graph",),
            "modes": (synthetic.WEAK,),
            "replicas": (2,),
            "repeats": 1,
            "budget": synthetic.LEARNING,
            "num_learning_runs": NUM_SEEDS,
            "learned": {REVISION: 1.0},
            "name": name,
        }
        shape = synthetic.Shape(**(defaults | fields))
        return load_study(synthetic.make_store(tmp_path / name, shape))

    return make


def with_finals(study, here, there, **fields):
    """Gives quality runs of the tree and of its baseline other qualities at the end."""

    def change(entry):
        finals = there if entry.spec.revision else here
        if entry.spec.budget is None or finals is None or not entry.is_ok:
            return None
        *before, last = entry.result.curve
        update = {"value": finals[entry.spec.repetition_index]} | fields
        metric = last.quality[0].model_copy(update=update)
        return {"curve": (*before, last.model_copy(update={"quality": (metric,)}))}

    return with_results(study, change)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, Verdict.PASS), (0.85, Verdict.IMPROVE)]
)
def test_as_much_as_the_baseline_passes(learned, factor, verdict):
    found = of_revisions(learned(learned={REVISION: factor}), "top_1")
    (case,) = found.cases

    assert verdict is found.verdict
    assert NUM_SEEDS == case.judgement.slowdown.n
    assert "in_graph x2, weak" == case.name


@pytest.mark.parametrize(
    ("metric", "here", "there", "worse"),
    [
        ("top_1", [0.80, 0.81] * 3, [0.90, 0.91] * 3, 0.10 / 0.905),
        # Less is better of FID: 30 against 20 is worse by half.
        ("fid", [30.0] * NUM_SEEDS, [20.0] * NUM_SEEDS, 0.5),
    ],
)
def test_learning_less_than_the_baseline_is_a_regression(
    learned, metric, here, there, worse
):
    found = of_revisions(with_finals(learned(), here, there, name=metric), metric)

    assert Verdict.REGRESS is found.verdict
    assert pytest.approx(1 + worse) == found.cases[0].judgement.slowdown.value


def test_the_interval_is_of_the_median_of_pairs(learned):
    """Of six losses the first or the last bounds it with probability 1/64."""
    rng = np.random.default_rng(3)
    here, there = rng.normal(0.80, 0.02, (2, NUM_SEEDS))
    losses = np.sort((there - here) / np.median(there))
    study = with_finals(learned(), list(here), list(there))
    (case,) = of_revisions(study, "top_1").cases
    slowdown = case.judgement.slowdown

    assert pytest.approx([1 + losses[0], 1 + np.median(losses), 1 + losses[-1]]) == [
        slowdown.low,
        slowdown.value,
        slowdown.high,
    ]
    assert "exact interval of the median" in slowdown.method


def _regressions(failing, n):
    """The share of 500 gates that regress, where runs of the change fail so often."""
    rng = np.random.default_rng(n)
    rule = judging.Rule(metric=THROUGHPUT, delta=0.05, alpha=0.05)
    found = 0
    for _ in range(500):
        ours, theirs = rng.normal(0.9, 0.01, (2, n))
        ours = np.where(rng.random(n) < failing, 0.1, ours)
        scale = -1 / np.median(theirs)
        judgement, _ = judging.judge_losses(
            list(scale * ours), list(scale * theirs), rule, is_paired=True
        )
        found += judgement.verdict is Verdict.REGRESS
    return found / 500


def test_runs_that_fail_more_often_regress(learned):
    few = with_finals(learned(), [0.9] * 4 + [0.1] * 2, [0.9] * NUM_SEEDS)
    (case,) = of_revisions(few, "top_1").cases

    assert _regressions(0.9, 16) > 0.95
    assert _regressions(0.45, 30) > 0.9
    assert case.reason.startswith("2 of 6 runs of the change fail (end worse than the")
    assert "0 of the baseline: p = 0.25" in case.reason
    assert case.judgement.verdict is Verdict.INCONCLUSIVE


def test_a_trial_that_failed_is_a_run_that_learned_nothing(learned, synthetic):
    """Four of six of this tree: no distance of zero, which would be an improvement."""
    failure = synthetic.TrialStatus.FAILED
    statuses = synthetic.every(failure, replicas=(2,), repetitions=range(4))
    failed, ok = learned(statuses=statuses), learned("b")
    here = [entry for entry in failed.entries if not entry.spec.revision]
    there = [entry for entry in ok.entries if entry.spec.revision]
    study = dataclasses.replace(failed, entries=(*here, *there))
    study = with_finals(study, [20.0] * NUM_SEEDS, [20.0] * NUM_SEEDS, name="fid")
    found = of_revisions(study, "fid")

    assert not found.verdict.is_pass
    assert "4 of 6 runs of the change fail" in found.cases[0].reason


@pytest.mark.parametrize(
    ("fields", "here", "there", "reason"),
    [
        ({}, None, None, "2 seed(s) have both, a verdict needs 5 or"),
        # No scale to judge by.
        ({}, 0.1, 0.0, "the baseline's median is 0, and"),
        ({"num_examples": 77}, None, 0.9, "protocols of the metric differ"),
    ],
)
def test_what_gives_no_verdict_says_why(learned, fields, here, there, reason):
    study = learned(num_learning_runs=2 if there is None else NUM_SEEDS)
    finals = [None if of is None else [of] * NUM_SEEDS for of in (here, there)]
    found = of_revisions(with_finals(study, *finals, **fields), "top_1")

    assert Verdict.INCONCLUSIVE is found.verdict
    assert reason in found.cases[0].reason


def test_a_metric_that_the_runs_lack_is_refused(learned):
    with pytest.raises(
        ResultsError, match=r"resnet50 measure top_1, not 'fid'; choose"
    ):
        of_revisions(learned(), "fid")


def test_a_stored_study_is_compared_in_the_order_of_seeds(learned, synthetic):
    study = learned("a", learned={})
    found = of_studies(study, learned("b", learned={}), "top_1")
    budget = synthetic.LEARNING.model_copy(update={"amount": 995})
    longer = learned("l", learned={}, budget=budget)

    assert found.is_weaker
    assert Verdict.PASS is found.verdict
    assert found.cases[0].judgement.slowdown.method == (
        "exact interval of the median over seeds (sign test) of the loss relative to"
        " the baseline's median quality, of two studies"
    )
    assert ("budget: 300 steps / 995 steps",) == of_studies(
        study, longer, "top_1"
    ).differences
    with pytest.raises(ResultsError, match=r"'c' has no quality run; run its sweep"):
        of_studies(study, learned("c", budget=None, learned={}), "top_1")
