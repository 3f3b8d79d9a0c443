"""Ids: stable, content-addressed, and blind to what is not content."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.records import identity
from results.records.models import TrialSpec

SPEC = TrialSpec(
    workload="resnet50",
    workload_version="1",
    code_digest="abc",
    preset="smoke",
    data="digits",
    backend="in_graph",
    num_replicas=2,
    per_replica_batch_size=4,
    global_batch_size=8,
    cores_per_replica=1,
    num_warmup_steps=2,
    num_measured_steps=4,
    is_evaluated=False,
    options={"version": "v1.5", "momentum": 0.9, "flag": True, "depth": 1},
    repetition_index=0,
    seed=7,
)


def test_ids_are_what_they_were():
    """A change here makes every stored trial run again: do not change it lightly."""
    assert identity.trial_id(SPEC) == "4b698d2a220e3b090cd3"
    assert identity.case_id(SPEC) == "c65170829909a45a509c"


def test_order_of_options_does_not_matter():
    """Canonical JSON sorts keys."""
    options = dict(reversed(list(SPEC.options.items())))
    other = SPEC.model_copy(update={"options": options})

    assert identity.trial_id(SPEC) == identity.trial_id(other)


def test_id_survives_the_disk():
    """JSON and back: true is not 1, and 1 is not 1.0."""
    back = TrialSpec.model_validate(json.loads(SPEC.model_dump_json()))

    assert identity.trial_id(SPEC) == identity.trial_id(back)
    assert [type(value) for value in SPEC.options.values()] == [
        type(value) for value in back.options.values()
    ]


@pytest.mark.parametrize(
    ("update", "is_same_case"),
    [
        ({"repetition_index": 1}, True),
        ({"seed": 8}, True),
        ({"backend": "tf_mirrored"}, False),
        ({"code_digest": "abd"}, False),
        ({"options": {**SPEC.options, "depth": 2}}, False),
        ({"options": {**SPEC.options, "depth": True}}, False),
    ],
)
def test_any_difference_is_another_trial(update, is_same_case):
    """Only repetition and seed leave the case alone."""
    other = SPEC.model_copy(update=update)

    assert identity.trial_id(SPEC) != identity.trial_id(other)
    assert is_same_case == (identity.case_id(SPEC) == identity.case_id(other))


@given(st.dictionaries(st.text(), st.integers() | st.booleans() | st.text()))
def test_canonical_json_is_json_and_ascii(value):
    """It reads back as what it was."""
    text = identity.canonical_json(value)

    assert value == json.loads(text)
    assert text.isascii()


def test_canonical_json_refuses_nan():
    """NaN is not JSON and would not compare equal to itself."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        identity.canonical_json({"x": float("nan")})


def test_what_earlier_studies_say_of_polling_is_ignored():
    """A study of a command is read, and its trials have the ids that they had."""
    program = {"command": "a {replicas}", "metric": "client", "unit": "rows"}
    spec = json.loads(SPEC.model_dump_json()) | {"program": program}
    earlier = spec | {"program": {**program, "polls": False}}
    found, present = map(TrialSpec.model_validate, (earlier, spec))

    assert identity.ids(found) == identity.ids(present)
