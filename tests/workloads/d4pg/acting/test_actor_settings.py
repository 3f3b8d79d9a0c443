"""Settings of actors: noise, and what is refused."""

import numpy as np
import pytest

from workloads.d4pg.acting.settings import ActorSettings

NAME = "cartpole:swingup"


@pytest.mark.parametrize(
    ("num_actors", "expected"),
    [(1, [0.176777]), (2, [1 / 32, 1.0]), (3, [1 / 32, 0.176777, 1.0])],
)
def test_noise_is_spread_over_environments(num_actors, expected):
    """From 1/32 to 1, evenly in the logarithm; whatever process they are in."""
    settings = ActorSettings(name=NAME, num_actors=num_actors)
    sigmas = [settings.sigma(k) for k in range(num_actors)]

    np.testing.assert_allclose(expected, sigmas, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_actors": 0}, "option num_actors=0 must be at least 1"),
        ({"niceness": -1}, "option niceness=-1 must be at least 0"),
        ({"sigma_min": 2.0}, "option sigma_min=2.0 must be at most sigma_max=1.0"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ActorSettings(name=NAME, **changes)
