"""Cases that should do the same work have the same losses on their first steps."""

import dataclasses
import re

import numpy as np
import pytest
from changed_study import with_results

from reports.view.view import view_store
from reports.words import trust
from results.figures import scaling, summary
from results.records.models import Control, Matching, SanityCheck
from results.study import matching as matching_lib
from results.study.cases import load_study


@pytest.fixture
def store(tmp_path, synthetic):
    shape = synthetic.Shape(
        modes=(synthetic.WEAK,), repeats=2, num_rounds=4, twin_factor=1.0
    )
    return synthetic.make_store(tmp_path / "s", shape)


def with_losses(store, change):
    """Returns the study with the losses of each trial times a factor, or several."""

    def changed(entry):
        (rank,) = entry.result.ranks
        losses = tuple((np.array(rank.losses) * change(entry)).tolist())
        return {"ranks": (rank.model_copy(update={"losses": losses}),)}

    return with_results(load_study(store), changed)


def test_backends_with_equal_losses_do_the_same_work(store):
    """At each size, over all generations; the twin as well."""
    found = matching_lib.agreements_of(load_study(store))

    assert found.repeats_itself
    assert [1, 2] == [pair.first.spec.num_replicas for pair in found.pairs]
    assert {2} == {pair.num_pairs for pair in found.pairs}
    assert not found.broken
    (text,) = trust.same_work(view_store(store))
    assert "Backends do the same work: " in text
    assert "losses of the first 3 steps are equal (n = 4 pairs of trials)." in text


def test_rounding_is_no_other_work(store):
    study = with_losses(
        store, lambda entry: 1.000001 if entry.spec.backend == "in_graph" else 1.0
    )
    assert not matching_lib.agreements_of(study).broken


def test_a_backend_that_computes_something_else_has_no_ratio(store):
    """Only where it does: at two replicas; the page says so."""

    def change(entry):
        spec = entry.spec
        return 1.05 if (spec.backend, spec.num_replicas) == ("tf_mirrored", 2) else 1.0

    study = with_losses(store, change)
    (broken,) = matching_lib.agreements_of(study).broken
    view = dataclasses.replace(view_store(store), study=study)

    assert 0.04 < broken.difference < 0.06
    assert [1] == [
        pair.first.spec.num_replicas for pair in scaling.compare_backends(study)
    ]
    assert any(
        re.match(
            r"tf_mirrored, 2 replicas x 8 does not do the same work as in_graph: their "
            r"losses differ by up to 5\s% within the first 3 steps",
            text,
        )
        for text in trust.same_work(view)
    )
    data = summary.summarize(study)["agreement"]
    assert [True, False] == [pair["holds"] for pair in data["pairs"]]


def test_programs_that_do_not_repeat_themselves_are_not_compared(store):
    """As those with actors: the twin has other losses than its case."""
    study = with_losses(
        store, lambda entry: 1.5 if entry.spec.control is Control.TWIN else 1.0
    )
    found = matching_lib.agreements_of(study)
    view = dataclasses.replace(view_store(store), study=study)

    assert not found.repeats_itself
    assert not found.pairs
    assert 2 == len(scaling.compare_backends(study))
    (text,) = trust.same_work(view)
    assert text.startswith("Equal programs do not repeat themselves here")


def test_what_begins_with_exported_weights_is_compared_by_its_own_check(store):
    """Other weights and batches than those of its seed: the ratio stays."""
    check = SanityCheck(name=matching_lib.OWN_CHECK, is_passed=True, detail="3 losses")

    def changed(entry):
        if entry.spec.backend != "tf_mirrored":
            return {}
        (rank,) = entry.result.ranks
        losses = tuple(1.5 * loss for loss in rank.losses)
        ranks = (rank.model_copy(update={"losses": losses}),)
        return {"ranks": ranks, "sanity": (*entry.result.sanity, check)}

    study = with_results(load_study(store), changed)
    view = dataclasses.replace(view_store(store), study=study)

    assert () == matching_lib.agreements_of(study).pairs
    assert 2 == len(scaling.compare_backends(study))
    (text,) = trust.same_work(view)
    assert text == (
        "First losses of tf_mirrored are compared in each of their trials, from "
        "weights and batches that were exported; trials where they differ have failed."
    )


def test_losses_are_not_compared_where_steps_draw_random_numbers(store):
    """Each backend draws its own; the ratio stays, and the page says what shows it."""
    study = with_losses(
        store, lambda entry: 1.2 if entry.spec.backend == "tf_mirrored" else 1.0
    )
    drawing = dataclasses.replace(
        study, plan=study.plan.model_copy(update={"draws_random_numbers": True})
    )

    assert matching_lib.agreements_of(study).broken
    found = matching_lib.agreements_of(drawing)
    assert found.is_drawn
    assert not found.broken
    assert found.twin is not None
    view = dataclasses.replace(view_store(store), study=drawing)
    (text,) = trust.same_work(view)
    assert re.search(
        "each backend its own, .* nor does anything else, since replicas were not",
        text,
    )
    matching = Matching(trials=drawing.plan.trials[:1])
    plan = drawing.plan.model_copy(update={"matching": matching})
    (text,) = trust.same_work(
        dataclasses.replace(view, study=dataclasses.replace(drawing, plan=plan))
    )
    assert text.endswith("matching with one replica, on equal numbers, shows it.")


def test_only_the_first_losses_of_models_that_amplify_rounding_are_compared(store):
    """Later ones differ, the ratio stays, and the page says what shows the rest."""

    def with_factors(factors):
        study = with_losses(
            store,
            lambda entry: factors if entry.spec.backend == "tf_mirrored" else 1.0,
        )
        plan = study.plan.model_copy(
            update={
                "amplifies_rounding": True,
                "matching": Matching(trials=study.plan.trials[:1]),
            }
        )
        return dataclasses.replace(study, plan=plan)

    study = with_factors([1.0001, 1.2, 1.5, 1.5])
    assert not matching_lib.agreements_of(study).broken
    assert 2 == len(scaling.compare_backends(study))
    begins, later = trust.same_work(dataclasses.replace(view_store(store), study=study))
    assert re.match(
        "Backends begin alike: .* losses of the first step differ by at most 0.0001",
        begins,
    )
    assert later == (
        "The model amplifies rounding from its first update on, so later losses do not "
        "show whether backends do the same work; matching with one replica, on equal "
        "numbers, shows it."
    )

    study = with_factors(1.05)
    assert 2 == len(matching_lib.agreements_of(study).broken)
    texts = [*trust.same_work(dataclasses.replace(view_store(store), study=study))]
    assert any("within the first step, so their ratio is left out" in t for t in texts)
