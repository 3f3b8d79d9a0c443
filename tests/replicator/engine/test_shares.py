"""Shares: when updated variables are sent to other programs, together with which."""

import types

import pytest
import tensorflow as tf
from collective_calls import make_call

from replicator.engine import plan
from replicator.errors import OptimizerOptionError

REMOTE, LIMIT = plan.REMOTE, plan.WORKER_BUCKET_BYTES


def share(node, *, size=4, source=0, dtype=tf.float32):
    shape = tf.TensorShape([size // dtype.size])
    return plan.UpdatedVariable(
        node=node, handle=f"v_{node}", source=source, dtype=dtype, shape=shape
    )


@pytest.fixture
def body(node, make_body):
    return make_body(
        node("free", "Const"),
        node("u", "Neg", "free"),
        node("read", "Const", "^u"),
        node("soon", "Neg", "read"),
        node("late", "Neg", "soon"),
        node("u2", "Neg", "read"),
        node("join", "Add", "u2", "free"),
        node("if", "Const", "^join"),
        node("u3", "NoOp"),
    )


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # Before the first of the collectives that depend on it, however far away.
        (["free", "soon", "late"], {1: ["u"], 3: ["u2", "u3"]}),
        (["soon", "soon free", "late"], {0: ["u"], 3: ["u2", "u3"]}),
        # At the end where none waits for it, or there is none.
        (["free"], {1: ["u", "u2", "u3"]}),
        ([], {0: ["u", "u2", "u3"]}),
        # Before a condition is computed from it.
        (["if?free"], {0: ["u", "u2"], 1: ["u3"]}),
    ],
    ids=["first of three", "first of equals", "no user", "no call", "condition"],
)
def test_a_share_goes_before_the_first_collective_that_depends_on_it(
    body, calls, expected
):
    """Shares of one place keep the order of the graph, which all programs have."""
    made = []
    for index, text in enumerate(calls):
        needed_if, _, operands = text.rpartition("?")
        options = {"operands": operands.split(), "needed_if": needed_if or None}
        made.append(make_call([[]], index=index, **options))

    found = plan.schedule_shares(body, made, [share(u) for u in ("u", "u2", "u3")])

    assert expected == {
        index: [one.node for one in shares] for index, shares in found.items()
    }


def test_shares_of_one_level_source_and_type_travel_together(body):
    level = plan.levels(body, [share(u) for u in ("u", "u2", "u3")])
    by_level = {0: "free", 1: "u read soon late u3", 2: "u2 join if"}
    assert level == {
        name: number for number, names in by_level.items() for name in names.split()
    }
    given = [
        share("u"),
        share("soon", source=1),
        share("read", size=8, dtype=tf.float64),
        share("u2"),
        share("u3"),
        share("late", source=1),
    ]

    assert [["read"], ["u", "u3"], ["soon", "late"], ["u2"]] == [
        [each.node for each in bucket] for bucket in plan.group(given, level)
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([LIMIT - 4, 4], [2]),
        ([LIMIT - 4, 8], [1, 1]),
        ([LIMIT + 4, 4, 4], [1, 2]),
    ],
    ids=["exactly full", "one number more", "larger alone"],
)
def test_a_bucket_takes_as_much_as_its_limit_and_no_more(sizes, expected):
    given = [share(f"u{i}", size=size) for i, size in enumerate(sizes)]

    found = plan.group(given, {each.node: 1 for each in given})

    assert expected == [len(bucket) for bucket in found]


@pytest.mark.parametrize(
    ("facts", "program_of_slot"),
    [
        ({"writers": {"update": REMOTE}}, 0),
        ({"writers": {"update": 0}}, 1),
        ({"emitted": {"update": (REMOTE, 0)}}, 0),
        ({"emitted": {"update": (REMOTE, 0)}}, 1),
        ({}, 0),
        ({}, 1),
    ],
    ids=["elsewhere", "here", "both, kept here", "both, kept there", "varies", "v 2"],
)
def test_state_that_others_use_is_refused(node, make_body, facts, program_of_slot):
    update = make_body(
        node("v", "Placeholder"),
        node("slot", "Placeholder"),
        node("update", "ResourceApplyMomentum", "v", "slot"),
    )
    unknown = {"emitted": {}, "writers": {}}
    message = (
        rf"keeps 'kernel/momentum' on worker {program_of_slot} only, but the step "
        r"uses it \(in ResourceApplyMomentum\)"
    )

    with pytest.raises(OptimizerOptionError, match=message):
        plan.check_shares(
            update,
            types.SimpleNamespace(**unknown | facts),
            {"slot": program_of_slot},
            0,
            {"slot": "kernel/momentum"},
        )
