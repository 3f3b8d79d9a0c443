"""N replicas have to match one before a number counts; what does not is crossed out.

Cases that should do the same work have the same losses on their first steps.
"""

import dataclasses
import io
import json
import re

import numpy as np
import pytest
import rich.console
from command_lines import visible
from study_files import with_results

import reports
from reports import view_store
from reports.exports import exports
from reports.words import caveats
from results import (
    Change,
    Control,
    EquivalenceCheck,
    Order,
    PlannedTrial,
    SanityCheck,
    ScalingMode,
    StatusRecord,
    TrialStatus,
    load_study,
    summary,
)
from results.figures import scaling
from results.records import identity
from results.study import equivalence
from results.study.equivalence import Outcome

GLOBAL_BATCH_SIZE = 16
LOSSES = (2.5, 2.25, 2.0)
SKETCH = (3.0, -4.0)


def planned_match(like, backend, num_replicas):
    """Returns a trial that matches, of a backend at a size."""
    spec = like.model_copy(
        update={
            "backend": backend,
            "num_replicas": num_replicas,
            "per_replica_batch_size": GLOBAL_BATCH_SIZE // num_replicas,
            "global_batch_size": GLOBAL_BATCH_SIZE,
            "num_warmup_steps": 1,
            "num_measured_steps": 2,
            "order": Order.SEQUENTIAL,
            "control": Control.MATCH,
            "is_evaluated": False,
        }
    )
    trial_id, case_id = identity.ids(spec)
    return PlannedTrial(
        trial_id=trial_id, case_id=case_id, modes=(ScalingMode.STRONG,), spec=spec
    )


def record_match(store, trial, losses=LOSSES, sketch=SKETCH, status=TrialStatus.OK):
    """Writes the records of a trial that matches, as if it had run."""
    like = next(iter(store.trials()))
    (rank,) = like.result.ranks
    times = {"warmup_step_time_sec": (0.1,), "step_time_sec": (0.1, 0.1)}
    rank = rank.model_copy(update=times | {"losses": tuple(losses)})
    name = {"trial_id": trial.trial_id}
    update = name | {
        "global_batch_size": GLOBAL_BATCH_SIZE,
        "num_measured_steps": 2,
        "blocks": (),
        "ranks": (rank,),
        "quality": (),
        "changes": (Change(group="optimizer", name="adam", sketch=tuple(sketch)),),
    }
    folder = store.equivalence
    folder.write_spec(trial.trial_id, trial.spec)
    folder.write_env(trial.trial_id, like.env)
    folder.write_result(trial.trial_id, like.result.model_copy(update=update))
    ended = like.status.model_dump() | name | {"status": status}
    folder.write_status(trial.trial_id, StatusRecord.model_validate(ended))


@pytest.fixture
def store(tmp_path, synthetic):
    """Returns an interleaved study of two backends at one and two replicas, matched
    with one.
    """
    shape = synthetic.Shape(
        modes=(synthetic.WEAK,), repeats=2, num_rounds=4, aa_factor=1.0
    )
    made = synthetic.make_store(tmp_path / "s", shape)
    plan = made.read_plan()
    like = plan.trials[0].spec
    trials = [planned_match(like, "single", 1)]
    trials += [planned_match(like, name, 2) for name in ("in_graph", "tf_mirrored")]
    made.write_plan(
        plan.model_copy(update={"equivalence": EquivalenceCheck(trials=tuple(trials))})
    )
    return made


def run(store, wrong="", **how):
    """Records all trials that match; those of the backend ``wrong`` as ``how`` says."""
    equivalence_plan = store.read_plan().equivalence
    assert equivalence_plan is not None
    for trial in equivalence_plan.trials:
        record_match(store, trial, **(how if trial.spec.backend == wrong else {}))


def test_what_matches_one_replica_counts(store):
    run(store, "in_graph", losses=[loss * 1.00001 for loss in LOSSES])
    study = load_study(store)

    assert [Outcome.MATCHES] * 2 == [match.outcome for match in study.matches]
    assert all(point.throughput is not None for point in scaling.points(study))
    (sentence,) = caveats.matches(view_store(store))
    assert re.match(
        r"in_graph x2, tf_mirrored x2 match one replica on the first 3 steps: losses "
        r"differ by at most 1e-05, what the steps change by at most 0, relatively\.",
        sentence,
    )


OF_LOSSES = "differs from one replica: their losses of the first 3 steps differ by"
OF_CHANGES = "differs from one replica: what 2 steps change in adam differs by"
WRONG = {
    "losses": ({"losses": (2.5, 2.26, 2.0)}, rf"{OF_LOSSES} 4\.4e-03 \(at most 0\.001"),
    "sum in place of mean": ({"sketch": (6.0, -8.0)}, rf"{OF_CHANGES} 50% \(at m"),
    "too few losses": ({"losses": LOSSES[:2]}, f"{OF_LOSSES} inf"),
    "another size": ({"sketch": (1.0, 2.0, 3.0)}, f"{OF_CHANGES} inf%"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_match_is_crossed_out_and_never_fitted(store, name):
    how, reason = WRONG[name]
    run(store, "in_graph", **how)
    study = load_study(store)
    wrong = [
        entry
        for entry in study.planned
        if entry.spec.backend == "in_graph" and entry.spec.num_replicas > 1
    ]
    points = {
        (point.backend, point.num_replicas): point for point in scaling.points(study)
    }

    assert {"unmatched"} == {entry.state for entry in wrong}
    assert all(re.match(reason, entry.reason) for entry in wrong)
    crossed = points["in_graph", 2]
    assert crossed.is_crossed_out
    assert {None} == {crossed.throughput, crossed.speedup, crossed.efficiency}
    assert re.match(reason, crossed.missing_reason)
    assert points["tf_mirrored", 2].speedup is not None
    assert points["in_graph", 1].throughput is not None
    ratios = {
        item.first.spec.num_replicas: item.ratio
        for item in scaling.compare_backends(study)
    }
    assert ratios[2] is None
    assert ratios[1] is not None


def test_the_report_crosses_it_out(store):
    run(store, "in_graph", sketch=(6.0, -8.0))
    page = visible(reports.build_report(store))
    matches = summary(store)["matches"]
    (found,) = (match for match in matches if match["backend"] == "in_graph")
    stream = io.StringIO()
    exports.print_summary(store, rich.console.Console(file=stream, width=200))

    assert re.search(r"in_graph weak 2 . \d+ not equivalent differs from one ", page)
    assert (
        "in_graph x2 failed the equivalence check: it differs from one replica" in page
    )
    assert "not equivalent" in stream.getvalue()
    assert ("differs", 0.5) == (found["outcome"], found["change_difference"])
    json.dumps(matches, allow_nan=False)


def test_what_cannot_be_compared_is_not_checked_and_says_why(store):
    run(store, "tf_mirrored", status=TrialStatus.FAILED)
    failed = load_study(store).matches[1]
    plan = store.read_plan()
    assert plan.equivalence is not None
    trial = plan.equivalence.trials[0]
    (store.equivalence.trial_dir(trial.trial_id) / "status.json").unlink()
    missing = load_study(store).matches[0]
    store.write_plan(plan.model_copy(update={"equivalence": None}))
    old = load_study(store)

    assert (Outcome.NOT_CHECKED, True) == (failed.outcome, failed.has_failed)
    assert re.match(r"the run of tf_mirrored x2 ended as failed: ", failed.reason)
    assert re.match(
        r"the run of single x1 has no record: it is missing", missing.reason
    )
    assert {equivalence.OLD_PLAN} == {match.reason for match in old.matches}
    assert not any(match.has_failed for match in old.matches)
    assert all(entry.state != "unmatched" for entry in old.planned)
    (sentence,) = caveats.matches(view_store(store))
    assert sentence == (
        "Not checked against one replica: in_graph x2, tf_mirrored x2: an earlier "
        "version planned this study."
    )


def _of_zeros(store, plan):
    """As with a learning rate of zero: equal losses alone are no proof."""
    for trial in plan.equivalence.trials:
        record_match(store, trial, sketch=(0.0, 0.0))
    return plan.equivalence


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        # The plan has the reason in place of a trial.
        (
            lambda _, plan: EquivalenceCheck(
                not_checked={"in_graph": "every worker updates"}
            ),
            ["every worker updates", "it was not planned"],
        ),
        # As one that was edited by hand, or is damaged.
        (
            lambda _, plan: EquivalenceCheck(trials=plan.equivalence.trials[1:]),
            ["one replica with the same global batch was not planned"] * 2,
        ),
        (_of_zeros, ["2 steps change no variable on either side"] * 2),
    ],
    ids=["not planned", "no reference", "no change"],
)
def test_a_study_that_checks_nothing_says_why(store, change, reasons):
    plan = store.read_plan()
    plan = plan.model_copy(update={"equivalence": change(store, plan)})
    store.write_plan(plan)
    found = load_study(store).matches

    assert reasons == [match.reason for match in found]
    assert {Outcome.NOT_CHECKED} == {match.outcome for match in found}
    assert found[0].has_failed == (reasons[0] != "every worker updates")


def test_a_change_of_zero_is_no_difference():
    zero = (Change(group="model", name="frozen", sketch=(0.0, 0.0)),)

    assert {("model", "frozen"): 0.0} == equivalence.change_differences(zero, zero)


@pytest.fixture(scope="module")
def view(make, synthetic):
    """An interleaved study of two backends on one and two, and A/A control."""
    fields = {"modes": (synthetic.WEAK,), "repeats": 2, "num_rounds": 4}
    return view_store(make(**fields, aa_factor=1.0))


def with_losses(view, factors, is_chosen, check=None, **plan):
    """Returns the view where losses of some trials are times a factor, or several."""

    def changed(entry):
        if not is_chosen(entry.spec):
            return None
        (rank,) = entry.result.ranks
        losses = tuple((np.array(rank.losses) * factors).tolist())
        fields = {"ranks": (rank.model_copy(update={"losses": losses}),)}
        return fields | ({"sanity": (*entry.result.sanity, check)} if check else {})

    study = with_results(view.study, changed)
    study = dataclasses.replace(study, plan=study.plan.model_copy(update=plan))
    return dataclasses.replace(view, study=study)


def of_mirrored(spec):
    return spec.backend == "tf_mirrored"


def sentences(view):
    return [*caveats.same_work(view)]


def design(view):
    (found,) = [of for of in caveats.collect(view) if of.name == "Design"]
    return found.reason


def test_backends_with_equal_losses_do_the_same_work(view):
    (text,) = sentences(view)
    assert "losses of the first 3 steps are equal (n = 4 pairs of trials)." in text
    view = with_losses(view, 1.000001, lambda spec: spec.backend == "in_graph")
    found = equivalence.agreements_of(view.study)
    (text,) = sentences(view)

    assert found.repeats_itself
    assert [1, 2] == [pair.first.spec.num_replicas for pair in found.pairs]
    assert {2} == {pair.num_pairs for pair in found.pairs}
    assert not found.broken
    assert "Backends compute the same: " in text


def test_a_backend_that_computes_something_else_has_no_ratio(view):
    view = with_losses(
        view, 1.05, lambda spec: of_mirrored(spec) and spec.num_replicas == 2
    )
    (broken,) = equivalence.agreements_of(view.study).broken
    data = summary(view.study)["agreement"]

    assert 0.04 < broken.difference < 0.06
    assert [1] == [
        pair.first.spec.num_replicas for pair in scaling.compare_backends(view.study)
    ]
    assert re.match(
        r"tf_mirrored, 2 replicas x 8 does not do the same work as in_graph: their "
        r"losses differ by up to 5\s% within the first 3 steps",
        design(view),
    )
    assert [True, False] == [pair["holds"] for pair in data["pairs"]]


def test_programs_that_do_not_repeat_themselves_are_not_compared(view):
    view = with_losses(view, 1.5, lambda spec: spec.control is Control.AA)
    found = equivalence.agreements_of(view.study)
    (text,) = sentences(view)

    assert not found.repeats_itself
    assert not found.pairs
    assert 2 == len(scaling.compare_backends(view.study))
    assert text.startswith("Equal programs do not repeat themselves here")


def test_what_begins_with_exported_weights_is_compared_by_its_own_check(view):
    check = SanityCheck(name=equivalence.OWN_CHECK, is_passed=True, detail="3 losses")
    view = with_losses(view, 1.5, of_mirrored, check)

    assert () == equivalence.agreements_of(view.study).pairs
    assert 2 == len(scaling.compare_backends(view.study))
    (text,) = sentences(view)
    assert text.startswith("First losses of tf_mirrored are compared in each of their")


def test_losses_are_not_compared_where_steps_draw_random_numbers(view):
    drawing = with_losses(view, 1.2, of_mirrored, draws_random_numbers=True)
    found = equivalence.agreements_of(drawing.study)
    (text,) = sentences(drawing)
    matched = EquivalenceCheck(trials=view.study.plan.trials[:1])
    (equivalence_text,) = sentences(
        with_losses(
            view, 1.2, of_mirrored, draws_random_numbers=True, equivalence=matched
        )
    )

    assert equivalence.agreements_of(with_losses(view, 1.2, of_mirrored).study).broken
    assert found.is_drawn
    assert not found.broken
    assert found.aa_control is not None
    assert re.search(
        "each backend its own, .* nor does anything else: there was no equiv", text
    )
    assert equivalence_text.endswith(
        "the equivalence check, on equal numbers, shows it."
    )


def test_only_the_first_losses_of_models_that_amplify_rounding_are_compared(view):
    plan = {
        "amplifies_rounding": True,
        "equivalence": EquivalenceCheck(trials=view.study.plan.trials[:1]),
    }
    later = with_losses(view, [1.0001, 1.2, 1.5, 1.5], of_mirrored, **plan)
    first = with_losses(view, 1.05, of_mirrored, **plan)
    begins, rest = sentences(later)

    assert not equivalence.agreements_of(later.study).broken
    assert 2 == len(scaling.compare_backends(later.study))
    assert re.match(
        "Backends begin alike: .* losses of the first step differ by at most 0.0001",
        begins,
    )
    assert rest.startswith("The model amplifies rounding from its first update on")
    assert 2 == len(equivalence.agreements_of(first.study).broken)
    assert "within the first step, so their ratio is left out" in design(first)
