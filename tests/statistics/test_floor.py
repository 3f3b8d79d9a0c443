"""Studies whose generations happen to agree: what their intervals are worth."""

import numpy as np
import pytest

from results.statistics import generations

NUM_STUDIES = 2000
NUM_ROUNDS = 20


@pytest.mark.parametrize("of_process", [0.0, 0.5])
def test_the_interval_of_generations_that_agree_holds_the_truth(of_process):
    """Where rounds decide the width; Student's t over generations does not hold it.

    Processes differ by nothing, or by half of what a mean of rounds does.
    """
    generator = np.random.default_rng(31)
    shape = (NUM_STUDIES, 5)
    rounds = of_process / NUM_ROUNDS**0.5 * generator.standard_normal((*shape, 1))
    rounds = 0.1 * (rounds + generator.standard_normal((*shape, NUM_ROUNDS)))
    found = [generations.over_rounds(of) for of in rounds]
    plain = [generations.over_generations(of.mean(axis=1)) for of in rounds]
    agree = np.array(
        [one.high > other.high for one, other in zip(found, plain, strict=True)]
    )
    covered, before = (
        np.array([not of.excludes(1.0) for of in which]) for which in (found, plain)
    )

    assert 0.15 < agree.mean() < 0.35
    assert before[agree].mean() < 0.88
    assert 0.89 < covered[agree].mean() < 0.98
    assert 0.95 < covered.mean() < 0.99
    assert 0.93 < before.mean() < 0.965
