"""A gate on quality judges seeds in pairs, relative to what the baseline learned."""

import dataclasses

import numpy as np
import pytest
from changed_study import with_results

from results import load_study
from results.errors import ResultsError
from results.judging import gate, gate_metrics, quality_gate
from results.judging.gate_metrics import Rule
from results.statistics.group_sequential import Verdict

BASE = "1234567890ab"
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
            "learned": {BASE: 1.0},
            "name": name,
        }
        shape = synthetic.Shape(**(defaults | fields))
        return load_study(synthetic.make_store(tmp_path / name, shape))

    return make


def rule_of(study, name="top_1"):
    metric = gate_metrics.quality_metric(study.metrics[name])
    return Rule(metric=metric, delta=0.05, alpha=0.05)


def of_revisions(study, name="top_1"):
    return gate.judge_revisions(study, rule_of(study, name), baseline="main")


def of_studies(study, stored):
    return gate.judge_studies(study, stored, rule_of(study), baseline="study b")


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
    found = of_revisions(learned(learned={BASE: factor}))
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
    (case,) = of_revisions(with_finals(learned(), list(here), list(there))).cases
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
    rule = Rule(metric=gate_metrics.THROUGHPUT, delta=0.05, alpha=0.05)
    found = 0
    for _ in range(500):
        ours, theirs = rng.normal(0.9, 0.01, (2, n))
        ours = np.where(rng.random(n) < failing, 0.1, ours)
        scale = -1 / np.median(theirs)
        judgement, _ = quality_gate.judge_losses(
            list(scale * ours), list(scale * theirs), rule, is_paired=True
        )
        found += judgement.verdict is Verdict.REGRESS
    return found / 500


def test_runs_that_fail_more_often_regress(learned):
    few = with_finals(learned(), [0.9] * 4 + [0.1] * 2, [0.9] * NUM_SEEDS)
    (case,) = of_revisions(few).cases

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
    found = of_revisions(with_finals(study, *finals, **fields))

    assert Verdict.INCONCLUSIVE is found.verdict
    assert reason in found.cases[0].reason


def test_a_metric_that_the_runs_lack_is_refused(learned):
    with pytest.raises(
        ResultsError, match=r"resnet50 measure top_1, not 'fid'; choose"
    ):
        of_revisions(learned(), "fid")


def test_a_stored_study_is_compared_in_the_order_of_seeds(learned, synthetic):
    study = learned("a", learned={})
    found = of_studies(study, learned("b", learned={}))
    budget = synthetic.LEARNING.model_copy(update={"amount": 995})
    longer = learned("l", learned={}, budget=budget)

    assert found.is_weaker
    assert Verdict.PASS is found.verdict
    assert quality_gate.UNPAIRED == found.cases[0].judgement.slowdown.method
    assert ("budget: 300 steps / 995 steps",) == of_studies(study, longer).differences
    with pytest.raises(ResultsError, match=r"'c' has no quality run; run its sweep"):
        of_studies(study, learned("c", budget=None, learned={}))
