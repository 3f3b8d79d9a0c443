"""Which trials match N replicas with one, and why others are not checked."""

import dataclasses

import pytest

from harness import catalog
from harness.planning import cases, matching, plan, resuming
from harness.planning import study as study_module
from results.records.models import Control, Order, ScalingMode
from results.study.matching import NUM_STEPS


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ((), {}),
        ((2,), {2: 16}),
        ((2, 4, 8), {2: 16, 4: 16, 8: 16}),
        ((2, 3), {2: 18, 3: 18}),
        ((16,), {16: 32}),
        ((7, 8, 9), {7: 21, 8: 16, 9: 18}),
    ],
)
def test_all_sizes_share_one_replica_where_they_can(counts, sizes):
    """A replica has two examples or more, and a global batch sixteen."""
    assert sizes == matching.global_batch_sizes(counts)


def planned(request):
    return plan.plan_sweep(request, cases.Machine(num_available_cores=4))


def test_every_backend_and_size_is_matched_once(small_request):
    """Whatever the modes and repetitions; with one replica of ``single``; untimed."""
    request = small_request.model_copy(
        update={
            "replicas": (1, 2, 4),
            "order": Order.RELAY,
            "modes": tuple(ScalingMode),
            "per_replica_batch_size": 4,
        }
    )
    found = planned(request).matching
    specs = [trial.spec for trial in found.trials]

    assert [
        ("single", 1),
        ("in_graph", 2),
        ("in_graph", 4),
        ("tf_mirrored", 2),
        ("tf_mirrored", 4),
    ] == [(spec.backend, spec.num_replicas) for spec in specs]
    assert {16} == {spec.global_batch_size for spec in specs}
    assert {(Control.MATCH, Order.SEQUENTIAL, False)} == {
        (spec.control, spec.order, spec.is_evaluated) for spec in specs
    }
    assert {NUM_STEPS} == {
        spec.num_warmup_steps + (spec.num_measured_steps or 0) for spec in specs
    }
    assert {} == found.not_checked


def test_what_is_not_matched_has_a_reason(small_request, monkeypatch):
    """Asynchronous training, a workload that does not say how, and a request."""
    request = small_request.model_copy(update={"backends": ("async",)})
    of_async = planned(request)
    unwanted = planned(small_request.model_copy(update={"is_matched": False})).matching
    info = dataclasses.replace(catalog.workload("resnet50"), matching=None)
    monkeypatch.setitem(catalog.WORKLOADS, "resnet50", info)
    unknown = planned(small_request).matching

    assert {"async": "every worker updates from the values that it has read"} == (
        of_async.matching.not_checked
    )
    assert (
        "backend async is not matched with one replica: every worker updates from the"
        " values that it has read"
    ) in of_async.notes
    assert {"--no-match was given"} == set(unwanted.not_checked.values())
    assert {
        "resnet50 cannot be matched: the workload does not say how it can be"
    } == set(unknown.not_checked.values())
    for found in (of_async.matching, unwanted, unknown):
        assert () == found.trials


def test_one_replica_needs_no_match(small_request):
    """There is nothing to match with itself."""
    found = planned(small_request.model_copy(update={"replicas": (1,)})).matching

    assert ((), {}) == (found.trials, found.not_checked)


def test_a_study_that_is_extended_matches_the_new_sizes(small_request):
    """The trials of both plans are kept, and reasons only where nothing matches."""

    def plan_of(**fields):
        request = small_request.model_copy(update=fields)
        return study_module.make_plan(
            planned(request), request, study="s", command=("sweep",)
        )

    first = plan_of(replicas=(1, 4), is_matched=False)
    both = resuming.reconcile(first, plan_of(replicas=(1, 2, 4))).plan.matching

    assert both is not None
    assert {1, 2, 4} == {trial.spec.num_replicas for trial in both.trials}
    assert {} == both.not_checked
