"""The audit of input pipelines sees what an epoch misses, repeats and leaves over."""

import pytest
import tensorflow as tf
from case_cluster import check_message

import replicator
from replicator import InputReplicationMode

PER_REPLICA = InputReplicationMode.PER_REPLICA


def _identity(x):
    return x


def _examples(num_examples):
    return tf.data.Dataset.range(num_examples)


def _shares(num_examples, per_replica_batch_size, **options):
    def input_fn(ctx):
        share = _examples(num_examples).shard(
            ctx.num_input_pipelines, ctx.input_pipeline_id
        )
        return share.batch(per_replica_batch_size, **options)

    return input_fn


def _eight_at_once(num_examples):
    return lambda ctx: replicator.split_global_batches(_examples(num_examples), ctx, 8)


def _two_each(num_examples):
    return _shares(num_examples, 2)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("mode", InputReplicationMode)
@pytest.mark.parametrize(
    ("make", "num_replicas", "num_examples", "num_steps"),
    [
        (_eight_at_once, 4, 1, 1),
        (_eight_at_once, 4, 17, 3),
        (_eight_at_once, 4, 24, 3),
        (_two_each, 2, 16, 4),
        (_two_each, 2, 21, 6),
    ],
)
def test_an_epoch_feeds_every_example_once(
    mode, make, num_replicas, num_examples, num_steps
):
    """A partial last step and empty parts too; the audit and run() end alike."""
    repl = replicator.create("in_graph", num_replicas=num_replicas)
    input_fn = make(num_examples)

    audit = repl.audit_inputs(
        input_fn, mode, key_fn=_identity, num_examples=num_examples
    )
    inputs = repl.make_input_iterator(input_fn, mode)
    fed = [[x.numpy().tolist() for x in batch] for batch in inputs]

    assert audit.is_exact
    assert num_examples == audit.num_fed
    assert f"{num_examples} of {num_examples} examples fed, 0 missing" in str(audit)
    assert len(fed) == audit.num_steps == num_steps == inputs.num_steps
    if mode is PER_REPLICA and make is _eight_at_once:
        assert {num_steps} == set(audit.num_batches)
    found = sorted(i for step in fed for part in step for i in part)
    assert list(range(num_examples)) == found
    rest = num_examples % (2 * num_replicas)
    assert rest == sum(map(len, fed[-1])) % (2 * num_replicas)


def test_the_error_of_pipelines_that_all_read_everything_says_to_take_a_share(in_graph):
    with pytest.raises(
        replicator.InputAuditError,
        match=r"8 repeated; 8 \(0, 1, 2, 3, 4, \.\.\.\) were fed more than once "
        r"\(example 0 from pipelines 0, 1\): "
        r".*dataset\.shard\(ctx\.num_input_pipelines, "
        r"ctx\.input_pipeline_id\)",
    ) as caught:
        in_graph.audit_inputs(
            lambda _: _examples(8).batch(2), PER_REPLICA, key_fn=_identity
        )

    assert dict.fromkeys(range(8), (0, 1)) == caught.value.audit.repeated


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("reads_shares", ["shard", "split_global_batches", "filter"])
@pytest.mark.parametrize(
    "seed", [lambda _: None, lambda ctx: ctx.input_pipeline_id + 1], ids=["none", "own"]
)
@pytest.mark.parametrize("has_global_seed", [True, False])
def test_shares_of_other_orders_are_told_to_seed_the_shuffle(
    reads_shares, seed, has_global_seed
):
    repl = replicator.create("in_graph", num_replicas=2)
    if not has_global_seed:
        tf.random.set_seed(None)

    def input_fn(ctx):
        count, index = ctx.num_input_pipelines, ctx.input_pipeline_id
        shuffled = _examples(40).shuffle(40, seed=seed(ctx))
        if reads_shares == "split_global_batches":
            return replicator.split_global_batches(shuffled, ctx, 4)
        if reads_shares == "shard":
            return shuffled.shard(count, index).batch(2)
        every = shuffled.enumerate().filter(lambda i, x: i % count == index)
        return every.map(lambda i, x: x).batch(2)

    with pytest.raises(replicator.ReplicatorError) as caught:
        repl.audit_inputs(input_fn, PER_REPLICA, key_fn=_identity, num_examples=40)

    assert "order of its own" in str(caught.value)
    assert "write shuffle(..., seed=...)" in str(caught.value)
    assert "dataset.shard(" not in str(caught.value)


def test_uneven_shares_name_what_the_last_step_leaves_over():
    """Four pipelines of 9 batches of fixed size: three have two, so one is left."""
    repl = replicator.create("in_graph", num_replicas=4)

    with pytest.raises(
        replicator.InputAuditError,
        match=r"8 of 9 examples fed, 1 missing, .*1 \(8\) were read, but not every "
        r"replica had a batch for step 3 \(pipelines yielded 3, 2, 2, 2 batches\).*"
        r"leave out drop_remainder=True, or .*split_global_batches",
    ) as caught:
        repl.audit_inputs(
            _shares(9, 1, drop_remainder=True),
            PER_REPLICA,
            key_fn=_identity,
            num_examples=9,
        )

    assert {8: (0,)} == caught.value.audit.unfed


_ENDLESS = _examples(8).repeat()
REFUSED = {
    "^InputAuditError: .*num_examples=2 is less than the pipelines yielded": (
        _shares(4, 2),
        {"num_examples": 2},
    ),
    r"^InputAuditError: .*pipeline 0 is endless.*leave out \.repeat\(\)": (
        lambda _: _ENDLESS,
        {},
    ),
    # Of unknown cardinality.
    r"^InputAuditError: input pipeline 0 is endless.*leave out \.repeat\(\)": (
        lambda _: _ENDLESS.filter(lambda _: True).batch(2),
        {},
    ),
    r"^InputAuditError: .*key_fn returned shape \[\].*key per example": (
        _shares(8, 2),
        {"key_fn": tf.reduce_sum},
    ),
    r"^TypeError: audit_inputs\(\) calls key_fn with a batch, but got None, which "
    "is not": (_shares(8, 2), {"key_fn": None}),
    r"^TypeError: audit_inputs\(\) calls key_fn with a batch, but '.*' does not take": (
        _shares(8, 2),
        {"key_fn": lambda: 1},
    ),
    "^TypeError: input_fn returned 'list'": (lambda _: [1], {}),
    **{
        f"^ValueError: num_examples {number!r} must be an integer of at least 0": (
            _shares(8, 2),
            {"num_examples": number},
        )
        for number in ("8", 8.0, -1, 10**30)
    },
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_audited_or_is_wrong_is_refused(in_graph, said):
    input_fn, options = REFUSED[said]

    check_message(
        said,
        lambda: in_graph.audit_inputs(input_fn, **{"key_fn": _identity, **options}),
    )


def test_examples_that_nobody_reads_are_counted(in_graph):
    """drop_remainder loses one of nine; without num_examples nobody could know."""
    input_fn = _shares(9, 2, drop_remainder=True)

    with pytest.raises(
        replicator.InputAuditError, match=r"no pipeline read 1: .*drop_remainder=False"
    ):
        in_graph.audit_inputs(input_fn, key_fn=_identity, num_examples=9)
    assert in_graph.audit_inputs(input_fn, key_fn=_identity).is_exact
