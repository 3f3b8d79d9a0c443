"""Presets and options of D4PG, without TensorFlow."""

import pytest

from workloads.d4pg import config


def test_paper_values_are_the_control_suite_paper_s():
    """Tassa et al. 2018, section 5, and the D4PG paper where that says nothing."""
    paper = config.PRESETS["paper"]

    assert (101, -150.0, 150.0) == (
        paper.num_atoms,
        paper.lowest_return,
        paper.highest_return,
    )
    assert ((300, 200), (400, 300)) == (paper.policy_layers, paper.critic_layers)
    assert (5, 0.99, 100) == (
        paper.num_return_steps,
        paper.discount,
        paper.target_update_period,
    )
    assert (32, 1 / 32, 1.0) == (paper.num_actors, paper.noise_low, paper.noise_high)
    assert ("prioritized", 0.6, 10**6) == (
        paper.replay,
        paper.priority_exponent,
        paper.replay_capacity,
    )
    assert (1e-4, 1e-4) == (paper.policy_learning_rate, paper.critic_learning_rate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observations": "sound"}, r"must be one of 'state', 'pixels'"),
        ({"network": "cnn"}, r"must be one of 'mlp', 'layer_norm_mlp'"),
        ({"policy_sizes": "300;200"}, r"policy_sizes='300;200' must be the units"),
        ({"critic_sizes": "0"}, r"critic_sizes='0' must be the units of each layer"),
        ({"network": "mlp", "critic_sizes": "400"}, r"must have two sizes or more"),
        ({"num_atoms": 1}, r"num_atoms=1 must be at least 2"),
        ({"lowest_return": 150.0}, r"must be below highest_return=150\.0"),
        ({"noise_low": 0.0}, r"noise_low=0\.0 must be above 0 and at most noise_high"),
        ({"noise_low": 2.0}, r"noise_low=2\.0 must be above 0 and at most noise_high"),
        ({"discount": 1.5}, r"discount=1\.5 must be at least 0\.0 and at most 1\.0$"),
        ({"actor_niceness": 20}, r"actor_niceness=20 must be .* below 20"),
        ({"min_replay_size": 10**7}, r"=10000000 is more than the 19558 transitions"),
        ({"replay_capacity": 50}, r"=50 keeps 25 environment steps of each environm"),
        ({"num_evaluation_episodes": 1}, r"must be at least 2"),
        ({"num_actor": 3}, r"did you mean 'num_actors'\?"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        config.make_config("smoke", options)
