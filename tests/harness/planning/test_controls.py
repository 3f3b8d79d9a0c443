"""Controls are planned beside the case that they explain, or a line says why not."""

import re

import pytest

from harness import catalog
from harness.errors import DifferentStudyError, ParseError, PlanError
from harness.options.option import declared
from harness.planning import checked, plan, study
from harness.planning.design import with_order
from harness.planning.request import SweepRequest
from harness.sources import code_digest
from results.records.models import Control, Order, ScalingMode

BOTH = (ScalingMode.WEAK, ScalingMode.STRONG)
ALL = (Control.NOSYNC, Control.SOLO, Control.SYNTHETIC)


def check(num_available_cores=2, **fields):
    defaults = {
        "preset": "smoke",
        "replicas": (1, 2),
        "repeats": 2,
        "budget": "none",
        "controls": ALL,
    }
    request = SweepRequest(workload="resnet50", **(defaults | fields))
    return checked.check(
        request, checked.Machine(num_available_cores=num_available_cores)
    )


def plan_of(num_available_cores=2, **fields):
    return plan.arrange(check(num_available_cores, **fields))


def controls_of(planned):
    return [
        (s.control.value, s.backend, s.num_replicas, s.per_replica_batch_size)
        for s in (trial.spec for trial in planned.trials)
        if s.repetition_index == 0 and s.control not in (Control.NONE, Control.TWIN)
    ]


def test_controls_are_those_of_the_first_backend_at_the_most_replicas():
    """Also one replica with one batch, which the input of one replica needs."""
    planned = plan_of(
        num_available_cores=4, replicas=(1, 2, 4, 8), per_replica_batch_size=8
    )

    assert [
        ("nosync", "in_graph", 4, 8),
        ("solo", "single", 4, 8),
        ("synthetic", "in_graph", 4, 8),
        ("synthetic", "in_graph", 1, 8),
    ] == controls_of(planned)
    assert (
        "controls nosync, solo, synthetic: of in_graph x4, weak scaling"
        in planned.notes
    )


def test_the_pipelines_alone_are_planned_for_the_case_only():
    planned = plan_of(
        num_available_cores=4, replicas=(1, 2, 4), controls=(Control.INPUT_ONLY,)
    )
    (found,) = controls_of(planned)

    assert ("input_only", "in_graph", 4) == found[:3]
    assert "controls input_only: of in_graph x4, weak scaling" in planned.notes


def test_solo_has_the_code_of_the_backend_single():
    (solo,) = [
        trial.spec
        for trial in plan_of(controls=(Control.SOLO,)).trials
        if trial.spec.control is Control.SOLO and trial.spec.repetition_index == 0
    ]

    assert code_digest.of_trial("resnet50", "single") == solo.code_digest
    assert 2 * solo.per_replica_batch_size == solo.global_batch_size


def test_controls_do_not_change_the_name_of_the_study():
    """The same cases are measured."""
    assert plan.digest_of(check()) == plan.digest_of(check(controls=()))


def test_the_first_backend_with_several_replicas_is_explained():
    """One that runs a single replica has nothing to explain."""
    planned = plan_of(backends=("single", "tf_mirrored"))

    assert {"tf_mirrored", "single"} == {c[1] for c in controls_of(planned)}
    assert {"solo"} == {c[0] for c in controls_of(planned) if c[1] == "single"}


def test_a_backend_without_a_control_is_said_with_its_reason():
    planned = plan_of(backends=("async",), num_available_cores=2)
    reason = catalog.backend("async").no_control_because

    assert f"no control nosync of backend async: {reason}" in planned.notes
    assert {"solo", "synthetic"} == {c[0] for c in controls_of(planned)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"order": Order.SEQUENTIAL},
            r"^--controls nosync,solo,synthetic with order .*use --order relay, or --",
        ),
        ({"modes": BOTH[1:]}, r"^--controls .* without weak scaling: .*add weak to "),
        (
            {"replicas": (1,)},
            r"^--controls .* explain a case of 2 replicas or more, .* to --replicas",
        ),
        ({"replicas": (1, 4)}, r"^--controls .* on at most 2 cores"),
        ({"replicas": (2,)}, r"^--controls .* against 1 replica of the same backend"),
    ],
)
def test_controls_without_anything_to_explain_are_an_error(fields, message):
    with pytest.raises(PlanError) as caught:
        plan_of(**fields)

    assert re.search(message, str(caught.value))


def record_of(**fields):
    request = SweepRequest(workload="resnet50", preset="smoke", **fields)
    return study.make_plan(plan_of(**fields), request, study="some", command=("x",))


def test_a_stored_plan_with_solo_can_be_resumed():
    """Its backend runs one replica, and each of its programs has one."""
    study.check_trials(record_of())


def test_a_control_cannot_be_added_to_a_relay():
    """It would have no turns beside the others."""
    with pytest.raises(
        DifferentStudyError,
        match=r"^study 'some' is a relay without control 'nosync' of in_graph x2 at .*"
        r"choose another --study$",
    ):
        plan.reconcile(record_of(controls=()), record_of())


def test_trials_that_run_in_sequence_have_no_controls_and_say_so():
    """As where the processes of a relay do not fit into memory."""
    request = SweepRequest(workload="resnet50", controls=ALL)

    found, notes = with_order(request, Order.SEQUENTIAL)

    assert (Order.SEQUENTIAL, ()) == (found.order, found.controls)
    assert ["no controls (nosync, solo, synthetic): they need a relay"] == notes


(KIND,) = (of.kind for of in declared(SweepRequest) if of.field == "controls")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("none", []),
        ("all", ["nosync", "solo", "synthetic", "input_only", "no_update"]),
        ("synthetic,nosync", ["nosync", "synthetic"]),
        ("solo", ["solo"]),
        ("input_only", ["input_only"]),
        ("no_update", ["no_update"]),
    ],
)
def test_controls_are_parsed_in_one_order(text, names):
    """So that the same controls are the same plan."""
    assert names == [control.value for control in KIND.read(text, "--controls")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("twin", r"^--controls: unknown control 'twin'; allowed are nosync, solo, "),
        ("all,solo", r"^--controls: 'all' stands beside other names in 'all,solo'; "),
        ("solo,", r"^--controls: 'solo,' has an empty name; "),
    ],
)
def test_other_names_are_an_error(text, message):
    with pytest.raises(ParseError) as caught:
        KIND.read(text, "--controls")

    assert re.search(message, str(caught.value))
