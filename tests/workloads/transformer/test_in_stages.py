"""The language model as a pipeline: it trains like one device without one."""

import re

import numpy as np
import pytest
import small_programs

import replicator
from replicator.pipeline import schedule
from workloads.transformer import config, flops, memory
from workloads.transformer.workload import WORKLOAD

LENGTH = 6
SMALL = {
    **small_programs.OPTIONS["transformer"],
    "sequence_length": LENGTH,
    "num_layers": 2,
}
# Sums of float32 in another order.
RTOL = 1e-5
PARTS = 2


def train(repl, **options):
    program = small_programs.build(
        "transformer",
        repl,
        per_replica_batch_size=4 * LENGTH,
        **{**SMALL, **options},
    )
    return [program.run() for _ in range(4)], program


def split(num_replicas, num_stages, **options):
    """A replicator whose replicas are split over devices."""
    return replicator.create(
        "in_graph",
        num_replicas=num_replicas,
        devices=[f"CPU:{i}" for i in range(num_replicas * num_stages)],
        logical_devices_per_replica=num_stages,
        **options,
    )


@pytest.fixture(scope="module")
def in_one_piece():
    losses, program = train(replicator.create("single"))
    return losses, program.model.get_weights()


@pytest.mark.parametrize(
    "options",
    [{}, {"schedule": "fill_drain", "recompute": True}],
    ids=["1F1B", "fill-drain, recomputed"],
)
def test_stages_train_like_one_device(in_one_piece, options):
    """The same losses, and the same weights after four updates."""
    losses, program = train(
        split(1, 2), pipeline_stages=2, num_microbatches=PARTS, **options
    )

    np.testing.assert_allclose(losses, in_one_piece[0], rtol=RTOL)
    for found, expected in zip(
        program.model.get_weights(), in_one_piece[1], strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=RTOL)
    assert ["CPU:0", "CPU:1"] == [
        part.trainable_variables[0].value.device[-5:]
        for part in (program.model.embedding, program.model.head)
    ]
    assert "stage 1     F0 B0 F1 B1" in program.explain() or options


def test_stages_with_sharded_gradients_train_like_whole_replicas():
    """Two replicas of two devices, each of which has a part of its stage's state."""
    repl = split(2, 2, variable_placement="mirrored")
    losses, program = train(
        repl, pipeline_stages=2, num_microbatches=PARTS, sharded_update="gradients"
    )
    whole, _ = train(split(2, 1))

    np.testing.assert_allclose(losses, whole, rtol=RTOL)
    assert "fullest of 4 devices" in repl.summary()
    # What the planner says before anything is built.
    held = memory.held(program._config, 2)
    assert sorted(repl._table.ownership.held()) == sorted(map(tuple, held))


def test_each_micro_batch_drops_other_values():
    """The same text in each of them has other losses; a pass that is repeated, none."""
    found = []
    for recompute in (False, True):
        losses, _ = train(
            split(1, 2),
            pipeline_stages=2,
            num_microbatches=PARTS,
            dropout=0.5,
            recompute=recompute,
        )
        assert np.isfinite(losses).all()
        found.append(losses)
    undropped, _ = train(split(1, 2), pipeline_stages=2, num_microbatches=PARTS)

    assert np.abs(np.array(found[0]) - undropped).min() > 1e-4


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_the_largest_stage_has_as_little_to_compute_as_it_can(num_stages):
    """Parts follow one another, the embedding first; every stage has one."""
    made = config.make_config("laptop", {"pipeline_stages": num_stages})
    costs = flops.of_parts(made)
    cut = replicator.balance_stages(costs, num_stages)

    assert made.num_layers + 2 == len(costs)
    assert [len(part) for part in cut] == {
        1: [10],
        2: [5, 5],
        3: [4, 3, 3],
        5: [2, 2, 2, 2, 2],
    }[num_stages]


def test_the_schedules_are_those_of_the_library():
    """The planner reads the names without TensorFlow."""
    assert set(schedule.SCHEDULES) == set(config.SCHEDULES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"pipeline_stages": 7},
            (
                "option pipeline_stages=7 is more than the 6 parts of a model of "
                "num_layers=4, its embedding and its head included: use at most 6"
            ),
        ),
        ({"pipeline_stages": 0}, "option pipeline_stages=0 must be at least 1"),
        ({"num_microbatches": 0}, "option num_microbatches=0 must be at least 1"),
        (
            {"pipeline_stages": 2, "schedule": "zigzag"},
            (
                "option schedule='zigzag' must be one of 'one_forward_one_backward', "
                "'fill_drain'"
            ),
        ),
        (
            {"pipeline_stages": 2, "jit": "compute"},
            (
                "option jit='compute' compiles a step as a whole, and a pipeline is "
                "many calls of its stages: use jit 'off', or pipeline_stages 1 and "
                "num_microbatches 1"
            ),
        ),
        (
            {"pipeline_stages": 2, "sharded_update": "parameters"},
            (
                "option sharded_update='parameters' stores each variable on one device "
                "of all, and a stage has its own: use 'gradients', or pipeline_stages 1"
            ),
        ),
        (
            {"recompute": True},
            (
                "option recompute=True has no effect without a pipeline: set "
                "pipeline_stages to at least 2, or leave it out"
            ),
        ),
        (
            {"schedule": "fill_drain"},
            "option schedule='fill_drain' has no effect without a pipeline",
        ),
    ],
)
def test_pipelines_that_cannot_be_are_named(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config.make_config("smoke", options)


def test_a_batch_that_micro_batches_do_not_divide_is_none():
    """Each of them has whole sequences."""
    with pytest.raises(
        ValueError,
        match=r"must be a multiple of option sequence_length=64 times "
        r"num_microbatches=3: use for example 192$",
    ):
        WORKLOAD.build(
            replicator.create("single"),
            preset="smoke",
            data="synthetic",
            per_replica_batch_size=512,
            seed=1,
            options={"num_microbatches": 3},
        )
