"""Pipelines with the options of the optimizer: sums, scales, clips, owners."""

import functools

import graphs
import numpy as np
import pytest
from tiny_models import WIDTH, Model

from replicator import errors


@functools.cache
def in_one_piece_after_four():
    return Model(2, 2).train(num_steps=4)


@pytest.mark.parametrize(
    "of_optimizer",
    [
        {"global_clipnorm": 0.01, "compression": "bfloat16"},
        {"sharded_update": "gradients", "accumulation_steps": 2},
        {
            "sharded_update": "gradients",
            "global_clipnorm": 0.01,
            "loss_scale": "dynamic",
        },
    ],
    ids=lambda options: "+".join(map(str, options.values())),
)
@pytest.mark.parametrize("placement", ["shared", "mirrored"])
@pytest.mark.covering(strength=1)
def test_options_of_the_optimizer_combine(of_optimizer, placement):
    options = {"of_optimizer": of_optimizer, "variable_placement": placement}
    plain, cut = (Model(2, 2, **options) for _ in range(2))

    losses, weights = plain.train(num_steps=4)
    found, own = cut.train(cut.pipeline(), num_steps=4)

    np.testing.assert_allclose(found, losses, rtol=1e-5)
    np.testing.assert_allclose(own, weights, rtol=1e-3, atol=2e-5)
    assert np.abs(own - in_one_piece_after_four()[1]).max() > 1e-4, "options act"


def test_owners_keep_the_sums_of_a_stage_on_its_devices():
    model = Model(
        2,
        2,
        variable_placement="mirrored",
        of_optimizer={"sharded_update": "gradients"},
    )
    model.train(model.pipeline(), num_steps=1)

    buckets = [
        bucket
        for plan in graphs.only_program(model.repl).plans
        for bucket in plan.buckets
        if bucket.is_for_owner
    ]
    # Kernel and offset of stage 0, then those of stage 1.
    for bucket in buckets:
        assert {bucket.logical_device} == {place // 2 for place in bucket.positions}
    assert [0, 1, 2, 3] == sorted(p for b in buckets for p in b.positions)
    assert 2 == len({bucket.owner for bucket in buckets})


def test_summary_has_the_bytes_of_the_fullest_device_with_activations():
    """Of a stage, not of the whole replica: weights, gradients, state, activations."""
    model = Model(
        2,
        2,
        variable_placement="mirrored",
        of_optimizer={"sharded_update": "gradients"},
    )
    model.optimizer.build([v for s in model.stages for v in s.trainable_variables])

    def table():
        *lines, last = model.repl.summary(1_100).replace(",", "").splitlines()[-4:]
        # A level that is refused is not said to fit.
        assert last == (
            "  parameters: not here a replica has several devices on which its "
            "variables are"
        )
        return {line.split()[0]: line.split()[1:] for line in lines}

    before = table()
    model.train(model.pipeline(), num_steps=1)
    after = table()

    # Weights, gradients, two values of Adam for each. Of two owners of a stage, one has
    # the kernel and the other one the offsets.
    kernel, stage = 4 * WIDTH * WIDTH, 4 * (WIDTH * WIDTH + WIDTH)
    assert before == {
        level: [*map(str, (*row, sum(row))), *fits, "1100"]
        for level, row, fits in (
            ("none", (stage, stage, 2 * stage), ("does", "not", "fit")),
            ("state", (stage, stage, 2 * kernel), ("fits",)),
            ("gradients", (stage, kernel, 2 * kernel), ("fits",)),
        )
    }
    assert "fullest of 4 devices" in model.repl.summary()
    # Stage 1 keeps 384 bytes of activations, as explain() says.
    assert {"384"} == {row[3] for row in after.values()}
    assert [1088 + 384, "does"] == [int(after["state"][4]), after["state"][5]]


def test_parameters_of_stages_are_not_sharded():
    with pytest.raises(
        errors.OptimizerOptionError,
        match=r"'parameters' does not work with InGraphReplicator: a replica has .*; "
        r"use sharded_update='gradients'$",
    ):
        Model(2, 2, of_optimizer={"sharded_update": "parameters"})
