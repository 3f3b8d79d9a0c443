"""Which trials match N replicas with one, and batches that are whole sequences."""

import dataclasses
import re

import pytest

from harness import catalog
from harness.errors import PlanError
from harness.planning import checked, matching, plan
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
    return plan.plan_sweep(request, checked.Machine(num_available_cores=4))


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
    both = plan.reconcile(first, plan_of(replicas=(1, 2, 4))).plan.matching

    assert both is not None
    assert {1, 2, 4} == {trial.spec.num_replicas for trial in both.trials}
    assert {} == both.not_checked


LENGTH = 64  # of the preset smoke
STAGES = {"pipeline_stages": 2, "num_microbatches": 8, "recompute": True}


@pytest.fixture
def make(small_request):
    def made(**fields):
        request = small_request.model_copy(
            update={
                "workload": "transformer",
                "data": None,
                "per_replica_batch_size": None,
                "options": {},
                **fields,
            }
        )
        machine = checked.Machine(num_available_cores=4)
        return request, plan.plan_sweep(request, machine)

    return made


def test_a_match_has_whole_sequences(make):
    for options, length in (
        ({}, LENGTH),
        ({"sequence_length": 32}, 32),
    ):
        matched = make(replicas=(1, 2), options=options)[1].matching.trials
        specs = [trial.spec for trial in matched]

        assert {16 * length} == {spec.global_batch_size for spec in specs}


def test_default_replicas_share_the_sequences_of_a_global_batch(make):
    """Two sequences are for two replicas, on a machine of four cores."""
    found = make(
        replicas=None, modes=(ScalingMode.STRONG,), global_batch_size=2 * LENGTH
    )[1]

    assert {1, 2} == {trial.spec.num_replicas for trial in found.trials}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"per_replica_batch_size": 100},
            (
                "1 replica(s) of 100 tokens each: a batch of transformer is a multiple "
                "of sequence_length 64; use 64 or 128 tokens per replica"
            ),
        ),
        (
            {"modes": (ScalingMode.STRONG,), "global_batch_size": 96, "replicas": (2,)},
            (
                "2 replica(s) of 48 tokens each: a batch of transformer is a multiple "
                "of sequence_length 64; use 64 tokens per replica "
                "(--per-replica-batch-size, or --global-batch-size 128 with strong "
                "scaling), or another --option sequence_length=N"
            ),
        ),
        (
            {"per_replica_batch_size": 100, "options": {"num_microbatches": 8}},
            (
                "1 replica(s) of 100 tokens each: a batch of transformer is a multiple "
                "of sequence_length 64 times num_microbatches 8; use 512 tokens per "
                "replica (--per-replica-batch-size, or --global-batch-size 512 with "
                "strong scaling), or another --option sequence_length=N, --option "
                "num_microbatches=N"
            ),
        ),
        (
            {"options": STAGES, "backends": ("tf_mirrored",)},
            (
                "option pipeline_stages=2 does not work on backend 'tf_mirrored': a "
                "replica of tf.distribute is one device here; use --backends single,"
                "in_graph,"
            ),
        ),
        (
            {"options": {"pipeline_stages": 9}},
            "option pipeline_stages=9 is more than the 6 parts of a model",
        ),
    ],
)
def test_parts_of_sequences_are_refused(make, fields, message):
    """Before anything is written, with the nearest batches that are whole."""
    with pytest.raises(PlanError, match=re.escape(message)):
        make(**fields)


def test_stages_match_one_device_without_a_pipeline(make):
    """Also at one replica; two sequences of each micro-batch for each replica."""
    found = make(replicas=(1, 2), options=STAGES, backends=("in_graph", "single"))[1]
    reference, *others = (trial.spec for trial in found.matching.trials)

    assert ("single", 1, {}) == (
        reference.backend,
        reference.num_replicas,
        reference.options,
    )
    assert {("in_graph", 1), ("in_graph", 2), ("single", 1)} == {
        (spec.backend, spec.num_replicas) for spec in others
    }
    assert all(spec.options == STAGES for spec in others)
    assert {32 * LENGTH} == {spec.global_batch_size for spec in (reference, *others)}
    assert (
        "without dropout; the one replica is on one device, without a pipeline"
    ) == found.matching.remarks["in_graph"]


def test_a_replica_has_a_core_for_each_stage(make):
    """Four cores are two replicas of two stages, and so the default goes to two."""
    found = make(
        replicas=None,
        options=STAGES,
        backends=("in_graph",),
        per_replica_batch_size=16 * LENGTH,
    )[1]

    assert {1, 2} == {trial.spec.num_replicas for trial in found.trials}
    assert {2} == {trial.spec.cores_per_replica for trial in found.trials}
    assert {2, 4} == {trial.spec.num_devices for trial in found.trials}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_losses_of_backends_are_compared_unless_values_are_dropped(make, dropout):
    """Each backend drops others, so their losses differ as they may."""
    request, planned = make(options={"dropout": dropout})
    made = study_module.make_plan(planned, request, study="s", command=("sweep",))

    assert made.draws_random_numbers is bool(dropout)


@pytest.mark.parametrize("workload", ["keras_fit", "resnet50"])
def test_a_plan_says_whether_models_amplify_rounding(make, workload):
    """Those of keras.applications do at their initial weights, ours does not."""
    request, planned = make(workload=workload)
    made = study_module.make_plan(planned, request, study="s", command=("sweep",))

    assert made.amplifies_rounding is (workload == "keras_fit")
