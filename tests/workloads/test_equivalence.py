"""N replicas match one on their first steps; each mistake of a backend is found."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tiny_models
from small_programs import build, match, sane

import replicator
from results import change_differences, loss_difference
from workloads import WORKLOADS

GLOBAL_BATCH_SIZE = 16
MARGIN = 1.5  # to either side of a tolerance
TOLERANCES = {"loss": 1e-3, "optimizer": 0.02, "model": 0.2}  # of a study
CASES = [
    "resnet50",
    "d4pg",
    "transformer",
    pytest.param("sngan", marks=pytest.mark.full),
]
# Images are read once; what else is read costs time and shows no more.
DATA = {"resnet50": "digits", "sngan": "digits"}


def _build(name, repl, **given):
    tf.keras.utils.set_random_seed(3)
    info = WORKLOADS[name]
    return build(
        name,
        repl,
        data=DATA.get(name, "synthetic"),
        per_replica_batch_size=GLOBAL_BATCH_SIZE // repl.num_replicas_in_sync,
        seed=3,
        **given,
        **info.equivalence.options,
    )


def _run(name, repl):
    return match(functools.partial(_build, name), repl)


def _worst(name, repl, reference):
    losses, changes, program = _run(name, repl)
    parts = {
        key: value / TOLERANCES[key[0]]
        for key, value in change_differences(changes, reference[1]).items()
    }
    of_losses = loss_difference(losses, reference[0])
    return max(of_losses / TOLERANCES["loss"], *parts.values()), program


@pytest.fixture(scope="module")
def one_replica():
    return functools.cache(lambda name: _run(name, replicator.create("single")))


@pytest.mark.parametrize("name", CASES)
def test_two_replicas_match_one(name, one_replica):
    repl = replicator.create("in_graph", num_replicas=2)

    assert _worst(name, repl, one_replica(name))[0] < 1 / MARGIN
    sane(one_replica(name)[2])


def _no_all_reduce(_monkeypatch):
    return replicator.create("in_graph", num_replicas=2, without_communication=True)


def _times(gradients, factor):
    return [
        tf.IndexedSlices(g.values * factor, g.indices, g.dense_shape)
        if isinstance(g, tf.IndexedSlices)
        else g * factor
        for g in gradients
    ]


def _planted(change):
    def make(monkeypatch):
        repl = replicator.create("in_graph", num_replicas=2)
        wrapper = type(repl.wrap_optimizer(tf.keras.optimizers.SGD()))
        right = wrapper._all_reduce

        def wrong(self, gradients, *what):
            return change(right, self, gradients, *what)

        monkeypatch.setattr(wrapper, "_all_reduce", wrong)
        return repl

    return make


def _sum_for_mean(right, optimizer, gradients, *what):
    return _times(right(optimizer, gradients, *what), 2.0)


def _forgotten_replica(right, optimizer, gradients, *what):
    context = replicator.get_replica_context()
    factor = tf.where(context.replica_id_in_sync_group == 0, 2.0, 0.0)
    return right(optimizer, _times(gradients, factor), *what)


def _batch_read_twice(monkeypatch):
    repl = replicator.create("in_graph", num_replicas=2)
    right = repl.make_input_iterator

    def wrong(input_fn, *args, **options):
        def twice(batch):
            return tf.data.Dataset.from_tensors(batch).repeat(2)

        def share_of(context):
            return input_fn(context).shard(2, 0).flat_map(twice)

        return right(share_of, *args, **options)

    monkeypatch.setattr(repl, "make_input_iterator", wrong)
    return repl


MISTAKES = {
    "no all-reduce": _no_all_reduce,
    "sum in place of mean": _planted(_sum_for_mean),
    "a replica that is forgotten": _planted(_forgotten_replica),
    "a batch that is read twice": _batch_read_twice,
}


@pytest.mark.parametrize(
    "name",
    [
        "d4pg",
        pytest.param("resnet50", marks=pytest.mark.full),
        pytest.param("sngan", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_found(name, mistake, one_replica, monkeypatch):
    right = one_replica(name)  # before the mistake, which would be in both
    worst, program = _worst(name, MISTAKES[mistake](monkeypatch), right)

    assert worst > MARGIN
    if mistake == "no all-reduce":  # also a control, whose variables differ
        checks = {check.name: check for check in program.sanity()}
        assert checks["replicas_in_sync"].detail == (
            "not checked: this control keeps its 2 replicas from communicating, so "
            "their variables differ"
        )


def test_two_replicas_of_sngan_draw_what_one_draws():
    found = []
    for repl in (
        replicator.create("single"),
        replicator.create("in_graph", num_replicas=2),
    ):
        program = _build("sngan", repl, control="match")
        count = program.per_replica_batch_size

        def step(program=program, count=count):
            return (
                *program.training._draw(count, 1),
                *program.training._draw(count, 2),
                program.training.noise.pixels(count, 8, 8, 3),
            )

        drawn = program._repl.run(step)
        found.append([np.concatenate([v.numpy() for v in leaf]) for leaf in drawn])

    of_one, of_two = found
    assert [GLOBAL_BATCH_SIZE] * 5 == [len(values) for values in of_one]
    for one, two in zip(of_one, of_two, strict=True):
        np.testing.assert_array_equal(one, two)
        assert not np.array_equal(two[: len(two) // 2], two[len(two) // 2 :])


def test_replicas_read_different_shares_of_one_batch(monkeypatch):
    examples = tiny_models.own_data().batch(4, drop_remainder=True).take(2)
    whole = [x.numpy() for x, _ in examples]
    mode = replicator.InputReplicationMode
    for kind in (mode.PER_WORKER, mode.PER_REPLICA, mode.SINGLE):
        repl = replicator.create("in_graph", num_replicas=2)
        make = functools.partial(repl.make_input_iterator, mode=kind)

        def of_kind(input_fn, _mode, make=make, **options):
            return make(input_fn, **options)

        monkeypatch.setattr(repl, "make_input_iterator", of_kind)
        program = build("own", repl, per_replica_batch_size=2, control="match")
        for batch in whole:
            x, _ = next(program.batches())
            np.testing.assert_array_equal(np.split(batch, 2), [*map(np.array, x)])
