"""The cut of a chain into stages, their schedule, and the activations that it keeps."""

import functools
import itertools
import random
import re

import keras
import pytest
import tensorflow as tf
from tiny_models import Model, mean_squared, on_cpus

import replicator
from replicator import PipelineError


def test_no_other_cut_has_a_smaller_largest_stage():
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
    repl = on_cpus(1, num_stages)
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
    stages, repl = made(balance=[1, 4])
    pipeline = replicator.Pipeline(
        [functools.partial(stage, training=True) for stage in stages],
        num_microbatches=2,
    )
    batch = tf.ones([8, 4]), tf.ones([8, 2])

    def step():
        return pipeline.loss_and_gradients(batch, mean_squared)[0]

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
        ({"example": tf.TensorSpec([None, 4])}, "with its number of examples"),
    ],
)
def test_chains_that_cannot_be_cut(arguments, message):
    given = {"makers": MAKERS, "example": EXAMPLE, "num_stages": 2, **arguments}
    with pytest.raises(PipelineError, match=message):
        replicator.make_stages(**given)


SCHEDULES = ("fill_drain", "one_forward_one_backward")
SIZES = [(k, m) for k in range(1, 9) for m in (1, 2, 3, 5, 8, 13, 32)]


def drawn(name, num_stages, num_microbatches):
    pipeline = replicator.Pipeline(
        [abs] * num_stages, num_microbatches=num_microbatches, schedule=name
    )
    width = len(f"F{num_microbatches - 1} ")
    rows = [row.partition("  ")[2] for row in pipeline.describe().splitlines()]
    return [
        [row[at : at + width].strip() for at in range(0, len(row), width)]
        for row in rows
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_stage_does_every_task_once_and_in_an_order_that_ends(name):
    """What a task needs ended before it; bubble and activations as in the papers."""
    # (K - 1) / (M + K - 1) of the time of every device, with tasks of one length. M
    # micro-batches are kept at each stage (GPipe), or min(M, K - k) at stage k
    # (PipeDream-Flush).
    for num_stages, num_microbatches in SIZES:
        rows = drawn(name, num_stages, num_microbatches)
        tasks = {f"{way}{m}" for way in "FB" for m in range(num_microbatches)}
        ends = [{task: at for at, task in enumerate(row) if task} for row in rows]
        assert num_stages == len(rows)
        assert 2 * (num_microbatches + num_stages - 1) == max(map(len, rows))
        for stage, (row, own) in enumerate(zip(rows, ends, strict=True)):
            assert tasks == set(own)
            assert len(tasks) == len([task for task in row if task])
            for task, at in own.items():
                neighbour = stage + (-1 if task[0] == "F" else 1)
                if 0 <= neighbour < num_stages:
                    assert ends[neighbour][task] < at
                assert task[0] == "F" or own[f"F{task[1:]}"] < at
            kept = itertools.accumulate(
                (task[:1] == "F") - (task[:1] == "B") for task in row
            )
            ahead = num_microbatches if name == "fill_drain" else num_stages - stage
            assert min(num_microbatches, ahead) == max(kept)


def test_a_schedule_is_drawn_with_a_row_per_stage():
    pipeline = replicator.Pipeline([abs] * 2, num_microbatches=4)

    assert pipeline.describe() == (
        "stage 0  F0 F1    B0 F2 B1 F3 B2    B3\nstage 1     F0 B0 F1 B1 F2 B2 F3 B3"
    )
    assert drawn("fill_drain", 2, 2) == [
        ["F0", "F1", "", "", "B1", "B0"],
        ["", "F0", "F1", "B1", "B0"],
    ]


PARTS = 16
# Two of 16 micro-batches are an eighth; what one task needs comes on top.
MOST = 0.2


def kept(repl):
    found = re.findall(r"micro-batches, ([\d,]+) bytes", repl.explain())
    return [int(text.replace(",", "")) for text in found]


def test_the_first_stage_keeps_two_micro_batches_instead_of_all():
    found = {}
    for name in SCHEDULES:
        model = Model(1, 2)
        pipeline = model.pipeline(num_microbatches=PARTS, schedule=name)
        model.train(pipeline, num_steps=1)
        found[name] = kept(model.repl)[0]

    assert found["one_forward_one_backward"] <= MOST * found["fill_drain"]
