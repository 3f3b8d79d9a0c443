"""The cut of a chain of layers, against every cut that there is."""

import functools
import itertools
import random

import keras
import pytest
import tensorflow as tf

import replicator
from replicator.errors import PipelineError


def test_no_other_cut_has_a_smaller_largest_stage():
    """Of 200 random chains of up to 9 layers, all cuts."""
    chance = random.Random(0)
    for _ in range(200):
        costs = [chance.choice([0.0, 1.0, chance.uniform(0, 9)]) for _ in range(9)]
        costs = costs[: chance.randint(1, 9)]
        num_stages = chance.randint(1, len(costs))
        stages = replicator.balance_stages(costs, num_stages)

        assert [i for stage in stages for i in stage] == list(range(len(costs)))
        assert all(len(stage) for stage in stages)
        assert len(stages) == num_stages
        largest = max(sum(costs[i] for i in stage) for stage in stages)
        every = itertools.combinations(range(1, len(costs)), num_stages - 1)
        best = min(
            max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cut, len(costs)]))
            for cut in every
        )
        assert largest == pytest.approx(best)


@pytest.mark.parametrize(
    ("costs", "num_stages", "message"),
    [
        ([1.0, 2.0], 3, "num_stages=3 for 2 layers; use an integer from 1 to 2"),
        ([1.0, 2.0], 0, "num_stages=0 for 2 layers"),
        ([1.0, float("nan")], 1, "costs has nan; use FLOPs or seconds, finite"),
        ([1.0, -2.0], 1, "costs has -2.0"),
    ],
)
def test_what_cannot_be_cut(costs, num_stages, message):
    with pytest.raises(PipelineError, match=message):
        replicator.balance_stages(costs, num_stages)


MAKERS = [
    lambda: keras.layers.Dense(32, "relu"),  # of 8 examples of 4: 2 * 8 * 4 * 32
    lambda: keras.layers.Dense(32, "relu"),
    lambda: keras.layers.Dropout(0.5),
    lambda: keras.layers.Dense(32, "relu", dtype="mixed_bfloat16"),
    lambda: keras.layers.Dense(2, dtype="float32"),
]
EXAMPLE = tf.TensorSpec([8, 4])


def made(num_stages=2, makers=MAKERS, example=EXAMPLE, **options):
    repl = replicator.create(
        "in_graph",
        num_replicas=1,
        devices=[f"CPU:{i}" for i in range(num_stages)],
        logical_devices_per_replica=num_stages,
    )
    with repl.context():
        return replicator.make_stages(makers, example, num_stages, **options), repl


def layers_of(stages):
    return [len(stage.layers) for stage in stages]


def test_layers_are_cut_by_the_products_in_their_graphs():
    """Two per multiply-add, whatever the layers add to that."""
    stages, _ = made()

    assert [2, 3] == layers_of(stages)
    assert stages.balance == (
        "balance by flops: layers 0 to 1, 2 to 4; 18,432 FLOPs forward, "
        "17,408 FLOPs forward"
    )
    assert {"CPU:0", "CPU:1"} == {
        stage.trainable_variables[0].value.device[-5:] for stage in stages
    }


def test_explain_prints_the_balance():
    """Above the schedule; the stages train."""
    stages, repl = made(balance=[1, 4])
    pipeline = replicator.Pipeline(
        [functools.partial(stage, training=True) for stage in stages],
        num_microbatches=2,
    )
    batch = tf.ones([8, 4]), tf.ones([8, 2])

    def step():
        return pipeline.loss_and_gradients(
            batch, lambda outputs, targets: tf.reduce_mean((outputs - targets) ** 2)
        )[0]

    loss = repl.run(step)

    assert 0 < float(loss[0])
    assert (
        "balance by hand: layers 0, 1 to 4; 2,048 FLOPs forward, "
        "33,792 FLOPs forward\nstage 0  F0 F1"
    ) in repl.explain()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"balance": [3, 6, 9]},
            (
                r"balance=\[3, 6, 9\] does not cut 5 layers into 2 stages; use "
                "'flops', or the number of layers of each stage, 5 in all"
            ),
        ),
        ({"balance": [5, 0]}, r"balance=\[5, 0\] does not cut 5 layers into 2 stages"),
        ({"balance": "measured"}, "balance='measured' is unknown; use 'flops', or a"),
        ({"balance": "hand"}, "balance='hand' is unknown"),
        (
            {"example": tf.TensorSpec([4])},
            r"layer 0 does not take float32\[4\]: Input 0 .* expected min_ndim=2",
        ),
        ({"num_stages": 6}, "num_stages=6 for 5 layers; use an integer from 1 to 5"),
        ({"makers": []}, r"make_stages\(makers\) got .*; pass a list of functions"),
        ({"makers": [keras.layers.Dense(1)]}, "functions that each return a new Keras"),
        (
            {"example": tf.ones([8, 4])},
            r"make_stages\(example\) got .*; pass the tf.Ten",
        ),
        ({"example": tf.TensorSpec([None, 4])}, "with its number of examples"),
    ],
)
def test_chains_that_cannot_be_cut(arguments, message):
    given = {"makers": MAKERS, "example": EXAMPLE, "num_stages": 2, **arguments}
    with pytest.raises(PipelineError, match=message):
        replicator.make_stages(**given)
