"""Pipelines with the options of the optimizer: sums, scales, clips, owners."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from staged_model import Model


@functools.cache
def in_one_piece_after_four():
    """The same of two replicas of two stages, after four steps."""
    return Model(2, 2).train(num_steps=4)


@pytest.mark.parametrize(
    "of_optimizer",
    [
        {"loss_scale": "dynamic"},
        {"accumulation_steps": 2},
        {"global_clipnorm": 0.01},
        {"compression": "bfloat16"},
        {"sharded_update": True},
    ],
    ids=lambda options: "+".join(map(str, options.values())),
)
@pytest.mark.parametrize("placement", ["shared", "mirrored"])
@pytest.mark.covering(strength=1)
def test_options_of_the_optimizer_combine(of_optimizer, placement):
    """Gradients are averages of a whole batch, as those that it gets otherwise.

    The full run adds each option in each placement.
    """
    options = {"of_optimizer": of_optimizer, "variable_placement": placement}
    plain, cut = (Model(2, 2, **options) for _ in range(2))

    losses, weights = plain.train(num_steps=4)
    found, own = cut.train(cut.pipeline(), num_steps=4)

    np.testing.assert_allclose(found, losses, rtol=1e-5)
    np.testing.assert_allclose(own, weights, rtol=1e-3, atol=2e-5)
    # The option does something, or is one of those that must not.
    is_seen = np.abs(own - in_one_piece_after_four()[1]).max() > 1e-4
    is_expected = bool({"accumulation_steps", "global_clipnorm"} & {*of_optimizer})
    assert is_expected == is_seen
