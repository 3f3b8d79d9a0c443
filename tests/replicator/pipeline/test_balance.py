"""The cut of a chain of layers, against every cut that there is."""

from __future__ import annotations

import itertools
import random

import pytest

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
    """The message has what was passed and what is allowed."""
    with pytest.raises(PipelineError, match=message):
        replicator.balance_stages(costs, num_stages)
