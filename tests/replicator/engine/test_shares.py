"""Shares: when updated variables are sent to other programs, together with which."""

import pytest
import tensorflow as tf
from collective_calls import make_call

from replicator.engine.analysis import plan
from replicator.engine.analysis.plan import Share
from replicator.engine.graph.liveness import ELSEWHERE, Liveness
from replicator.errors import OptimizerOptionError

LIMIT = plan.WORKER_BUCKET_BYTES


def share(node, *, size=4, source=0, dtype=tf.float32):
    """The new value of the variable ``v_<node>``, of so many bytes."""
    shape = tf.TensorShape([size // dtype.size])
    return Share(node=node, handle=f"v_{node}", source=source, dtype=dtype, shape=shape)


def call(index, *operands, needed_if=None):
    shapes = [[]] * len(operands)
    return make_call(shapes, index=index, operands=operands, needed_if=needed_if)


def live(*, writers=None, emitted=None):
    return Liveness(
        emitted=emitted or {}, writers=writers or {}, written={}, earlier={}, results={}
    )


def test_a_share_goes_before_the_first_collective_that_depends_on_it(make_body, node):
    """Of three calls, the second is the first that reads the update, indirectly."""
    body = make_body(
        node("u", "NoOp"),
        node("free", "Const"),
        node("read", "Const", "^u"),
        node("twice", "Neg", "read"),
    )
    calls = [call(0, "free"), call(1, "twice"), call(2, "read")]

    assert {1: [share("u")]} == plan.schedule_shares(body, calls, [share("u")])


def test_of_several_collectives_the_first_one_counts(make_body, node):
    """Which read one node, or two that depend on the update, in any order."""
    body = make_body(
        node("u", "Const"),
        node("soon", "Neg", "u"),
        node("late", "Neg", "u"),
        node("other", "Neg", "soon"),
        node("c", "Const"),
    )
    calls = [call(0, "c"), call(1, "soon"), call(2, "soon"), call(3, "late", "other")]

    assert {1: [share("u")]} == plan.schedule_shares(body, calls, [share("u")])
    assert {2: [share("u")]} == plan.schedule_shares(
        body, [calls[0], call(1, "c"), call(2, "late"), call(3, "soon")], [share("u")]
    )


def test_a_share_that_no_collective_waits_for_goes_to_the_end(make_body, node):
    """Its place is the number of calls, also where there are none."""
    body = make_body(node("u", "NoOp"), node("c", "Const"), node("later", "NoOp", "^u"))

    assert {1: [share("u")]} == plan.schedule_shares(body, [call(0, "c")], [share("u")])
    assert {0: [share("u")]} == plan.schedule_shares(body, [], [share("u")])
    assert {} == plan.schedule_shares(body, [call(0, "c")], [])


def test_a_condition_of_a_collective_counts_as_read(make_body, node):
    """The update must be there before the condition is computed from it."""
    body = make_body(node("c", "Const"), node("u", "NoOp"), node("if", "Const", "^u"))

    found = plan.schedule_shares(body, [call(0, "c", needed_if="if")], [share("u")])

    assert {0: [share("u")]} == found


def test_shares_of_one_place_keep_the_order_of_the_graph(make_body, node):
    """All programs have the same order."""
    body = make_body(
        node("b", "NoOp"), node("a", "NoOp"), node("x", "Const", "^a", "^b"),
        node("z", "NoOp"),
    )  # fmt: skip
    given = [share("b"), share("z"), share("a")]

    found = plan.schedule_shares(body, [call(0, "x")], given)

    assert {0: [given[0], given[2]], 1: [given[1]]} == found


def test_levels_count_updates_on_the_longest_way(make_body, node):
    """A diamond with one update on one side and two on the other."""
    body = make_body(
        node("c", "Const"),
        node("u1", "Neg", "c"),
        node("u2", "Neg", "u1"),
        node("u3", "Neg", "c"),
        node("join", "Add", "u2", "u3"),
        node("after", "NoOp", "^join"),
        node("u4", "NoOp", "^after"),
    )

    found = plan.levels(body, [share(u) for u in ("u1", "u2", "u3", "u4")])

    expected = {"c": 0, "u1": 1, "u2": 2, "u3": 1, "join": 2, "after": 2, "u4": 3}
    assert expected == found


def test_shares_of_one_level_source_and_type_travel_together():
    """Each difference makes another bucket; the order within is kept."""
    given = [
        share("a"),
        share("b", source=1),
        share("c", size=8, dtype=tf.float64),
        share("d"),
        share("e"),
        share("f", source=1),
    ]
    level = {"a": 1, "b": 1, "c": 1, "d": 2, "e": 1, "f": 1}

    found = plan.group(given, level)

    assert [["c"], ["a", "e"], ["b", "f"], ["d"]] == [
        [each.node for each in bucket] for bucket in found
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([LIMIT - 4, 4], [2]),
        ([LIMIT - 4, 8], [1, 1]),
        ([LIMIT + 4, 4, 4], [1, 2]),
        ([4, LIMIT, 4], [1, 1, 1]),
        ([], []),
    ],
    ids=["exactly full", "one number more", "larger alone", "in between", "none"],
)
def test_a_bucket_takes_as_much_as_its_limit_and_no_more(sizes, expected):
    """What is larger than a bucket has one of its own."""
    given = [share(f"u{i}", size=size) for i, size in enumerate(sizes)]

    found = plan.group(given, {each.node: 1 for each in given})

    assert expected == [len(bucket) for bucket in found]


@pytest.mark.parametrize(
    ("found", "program_of_slot"),
    [
        (live(writers={"update": ELSEWHERE}), 0),
        (live(writers={"update": 0}), 1),
        (live(emitted={"update": (ELSEWHERE, 0)}), 0),
        (live(emitted={"update": (ELSEWHERE, 0)}), 1),
        (live(), 0),
        (live(), 1),
    ],
    ids=["elsewhere", "here", "both, kept here", "both, kept there", "varies", "v 2"],
)
def test_state_that_others_use_is_refused(make_body, node, found, program_of_slot):
    """Of one node that updates a slot with its variable."""
    slot_update = make_body(
        node("v", "Placeholder"),
        node("slot", "Placeholder"),
        node("update", "ResourceApplyMomentum", "v", "slot"),
    )
    message = (
        rf"keeps 'kernel/momentum' on worker {program_of_slot} only, but the step "
        r"uses it \(in ResourceApplyMomentum\)"
    )

    with pytest.raises(OptimizerOptionError, match=message):
        plan.check_shares(
            slot_update,
            found,
            {"slot": program_of_slot},
            0,
            {"slot": "kernel/momentum"},
        )
