"""Cases that should do the same work have the same losses on their first steps."""

import dataclasses
import re

import numpy as np
import pytest
from study_files import with_results

from reports.view import view_store
from reports.words import caveats
from results.figures import frame, scaling
from results.records.models import Control, EquivalenceCheck, SanityCheck
from results.study import equivalence as equivalence_lib


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
    found = equivalence_lib.agreements_of(view.study)
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
    (broken,) = equivalence_lib.agreements_of(view.study).broken
    data = frame.summarize(view.study, view.frame)["agreement"]

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
    found = equivalence_lib.agreements_of(view.study)
    (text,) = sentences(view)

    assert not found.repeats_itself
    assert not found.pairs
    assert 2 == len(scaling.compare_backends(view.study))
    assert text.startswith("Equal programs do not repeat themselves here")


def test_what_begins_with_exported_weights_is_compared_by_its_own_check(view):
    check = SanityCheck(
        name=equivalence_lib.OWN_CHECK, is_passed=True, detail="3 losses"
    )
    view = with_losses(view, 1.5, of_mirrored, check)

    assert () == equivalence_lib.agreements_of(view.study).pairs
    assert 2 == len(scaling.compare_backends(view.study))
    (text,) = sentences(view)
    assert text.startswith("First losses of tf_mirrored are compared in each of their")


def test_losses_are_not_compared_where_steps_draw_random_numbers(view):
    drawing = with_losses(view, 1.2, of_mirrored, draws_random_numbers=True)
    found = equivalence_lib.agreements_of(drawing.study)
    (text,) = sentences(drawing)
    matched = EquivalenceCheck(trials=view.study.plan.trials[:1])
    (equivalence_text,) = sentences(
        with_losses(
            view, 1.2, of_mirrored, draws_random_numbers=True, equivalence=matched
        )
    )

    assert equivalence_lib.agreements_of(
        with_losses(view, 1.2, of_mirrored).study
    ).broken
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

    assert not equivalence_lib.agreements_of(later.study).broken
    assert 2 == len(scaling.compare_backends(later.study))
    assert re.match(
        "Backends begin alike: .* losses of the first step differ by at most 0.0001",
        begins,
    )
    assert rest.startswith("The model amplifies rounding from its first update on")
    assert 2 == len(equivalence_lib.agreements_of(first.study).broken)
    assert "within the first step, so their ratio is left out" in design(first)
