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
from reports import caveats_of, limits, view_store
from results import (
    Change,
    Control,
    EquivalenceCheck,
    Order,
    SanityCheck,
    ScalingMode,
    StatusRecord,
    TrialStatus,
    load_study,
    planned_trial,
    points_frame,
    summary,
)

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
    return planned_trial(spec, (ScalingMode.STRONG,))


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
        "changes": (
            Change(group="optimizer", name="adam", sketch=tuple(sketch)),
            # A change of zero is no difference.
            Change(group="model", name="frozen", sketch=(0.0, 0.0)),
        ),
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
    view = view_store(store)

    assert ["matches"] * 2 == [match.outcome.value for match in view.study.matches]
    assert [0.0] * 2 == [match.change_difference for match in view.study.matches]
    assert all(point.throughput is not None for point in view.points)
    (sentence,) = (text for text in limits(view) if "one replica" in text)
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
    view = view_store(store)
    wrong = [
        entry
        for entry in view.study.planned
        if entry.spec.backend == "in_graph" and entry.spec.num_replicas > 1
    ]
    points = {(point.backend, point.num_replicas): point for point in view.points}

    assert {"unmatched"} == {entry.state for entry in wrong}
    assert all(re.match(reason, entry.reason) for entry in wrong)
    crossed = points["in_graph", 2]
    assert crossed.is_crossed_out
    assert {None} == {crossed.throughput, crossed.speedup, crossed.efficiency}
    assert re.match(reason, crossed.missing_reason)
    assert points["tf_mirrored", 2].speedup is not None
    assert points["in_graph", 1].throughput is not None
    ratios = {item.first.spec.num_replicas: item.ratio for item in view.comparisons}
    assert ratios[2] is None
    assert ratios[1] is not None


def test_the_report_crosses_it_out(store):
    run(store, "in_graph", sketch=(6.0, -8.0))
    page = visible(reports.build_report(store))
    matches = summary(store)["matches"]
    (found,) = (match for match in matches if match["backend"] == "in_graph")
    stream = io.StringIO()
    reports.print_summary(store, rich.console.Console(file=stream, width=200))

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

    assert ("not_checked", True) == (failed.outcome.value, failed.has_failed)
    assert re.match(r"the run of tf_mirrored x2 ended as failed: ", failed.reason)
    assert re.match(
        r"the run of single x1 has no record: it is missing", missing.reason
    )
    assert {"an earlier version planned this study"} == {
        match.reason for match in old.matches
    }
    assert not any(match.has_failed for match in old.matches)
    assert all(entry.state != "unmatched" for entry in old.planned)
    (sentence,) = (text for text in limits(view_store(store)) if "one replica" in text)
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
    assert {"not_checked"} == {match.outcome.value for match in found}
    assert found[0].has_failed == (reasons[0] != "every worker updates")


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
    """What is said of whether backends do the same work."""
    starts = ("Equal programs", "Steps draw", "Backends", "The model", "First losses")
    return [text for text in limits(view) if text.startswith(starts)]


def design(view):
    (found,) = [of for of in caveats_of(view) if of.name == "Design"]
    return found.reason


def agreement(view):
    return summary(view.study)["agreement"]


def compared(view):
    """The sizes of cases with a ratio."""
    rows = points_frame(view.study).query("figure == 'forest'")
    return sorted(rows["num_replicas"])


def test_backends_with_equal_losses_do_the_same_work(view):
    (text,) = sentences(view)
    assert "losses of the first 3 steps are equal (n = 4 pairs of trials)." in text
    view = with_losses(view, 1.000001, lambda spec: spec.backend == "in_graph")
    found = agreement(view)
    (text,) = sentences(view)

    assert found["repeats_itself"]
    assert [1, 2] == [pair["num_replicas"] for pair in found["pairs"]]
    assert {2} == {pair["n"] for pair in found["pairs"]}
    assert all(pair["holds"] for pair in found["pairs"])
    assert "Backends compute the same: " in text


def test_a_backend_that_computes_something_else_has_no_ratio(view):
    view = with_losses(
        view, 1.05, lambda spec: of_mirrored(spec) and spec.num_replicas == 2
    )
    pairs = agreement(view)["pairs"]

    assert 0.04 < pairs[1]["largest_relative_difference"] < 0.06
    assert [1] == compared(view)
    assert re.match(
        r"tf_mirrored, 2 replicas x 8 does not do the same work as in_graph: their "
        r"losses differ by up to 5\s% within the first 3 steps",
        design(view),
    )
    assert [True, False] == [pair["holds"] for pair in pairs]


def test_programs_that_do_not_repeat_themselves_are_not_compared(view):
    view = with_losses(view, 1.5, lambda spec: spec.control is Control.AA)
    found = agreement(view)
    (text,) = sentences(view)

    assert not found["repeats_itself"]
    assert not found["pairs"]
    assert [1, 2] == compared(view)
    assert text.startswith("Equal programs do not repeat themselves here")


def test_what_begins_with_exported_weights_is_compared_by_its_own_check(view):
    check = SanityCheck(name="first_losses_agree", is_passed=True, detail="3 losses")
    view = with_losses(view, 1.5, of_mirrored, check)

    assert [] == agreement(view)["pairs"]
    assert [1, 2] == compared(view)
    (text,) = sentences(view)
    assert text.startswith("First losses of tf_mirrored are compared in each of their")


def test_losses_are_not_compared_where_steps_draw_random_numbers(view):
    drawing = with_losses(view, 1.2, of_mirrored, draws_random_numbers=True)
    (text,) = sentences(drawing)
    matched = EquivalenceCheck(trials=view.study.plan.trials[:1])
    (equivalence_text,) = sentences(
        with_losses(
            view, 1.2, of_mirrored, draws_random_numbers=True, equivalence=matched
        )
    )

    broken = agreement(with_losses(view, 1.2, of_mirrored))["pairs"]
    assert [False, False] == [pair["holds"] for pair in broken]
    assert [] == agreement(drawing)["pairs"]
    # The A/A control is compared all the same.
    control = with_losses(
        view, 1.5, lambda spec: spec.control is Control.AA, draws_random_numbers=True
    )
    assert [True, False] == [
        agreement(of)["repeats_itself"] for of in (drawing, control)
    ]
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

    assert [True, True] == [pair["holds"] for pair in agreement(later)["pairs"]]
    assert [1, 2] == compared(later)
    assert re.match(
        "Backends begin alike: .* losses of the first step differ by at most 0.0001",
        begins,
    )
    assert rest.startswith("The model amplifies rounding from its first update on")
    assert [False, False] == [pair["holds"] for pair in agreement(first)["pairs"]]
    assert "within the first step, so their ratio is left out" in design(first)
