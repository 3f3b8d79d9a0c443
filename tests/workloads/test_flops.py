"""The counted arithmetic of a training step, held to graphs and published figures."""

import pytest
import small_programs
import tensorflow as tf
from graph_flops import multiply_adds

import replicator
from workloads import catalog
from workloads.d4pg import networks as d4pg_networks
from workloads.d4pg.actor import PolicySpec
from workloads.d4pg.learner import Learner


def build(name, **options):
    return small_programs.build(name, replicator.create("single"), **options)


def per_example(function, make_args):
    """Of one more example: what does not depend on their number cancels."""
    counts = [multiply_adds(function, *make_args(count)) for count in (2, 3)]
    return counts[1] - counts[0]


def test_the_step_of_resnet50_does_what_is_counted():
    """Convolutions and products that loss and gradients need, at 32 px."""
    program = build("resnet50")

    def batch(count):
        images = tf.TensorSpec([count, 32, 32, 3])
        return ({"image": images, "label": tf.TensorSpec([count], tf.int32)},)

    counted = per_example(program.training.loss_and_gradients, batch)
    assert program.flops_per_example == 2 * counted


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "cifar", "num_discriminator_steps": 4},
        pytest.param({"layout": "imagenet"}, marks=pytest.mark.full),
    ],
)
def test_the_steps_of_sngan_do_what_is_counted(options):
    """Of both kinds of steps, the second with its share."""
    program = build("sngan", **options)
    config = program.training.config
    size, latent = config.image_size, config.latent_size

    def latents(count):
        return tf.TensorSpec([count, latent]), tf.TensorSpec([count], tf.int64)

    def images(count):
        spec = tf.TensorSpec([count, size, size, 3])
        return (spec, tf.TensorSpec([count], tf.int32), *latents(count))

    discriminator = per_example(program.training.discriminator_gradients, images)
    generator = per_example(program.training.generator_gradients, latents)
    share = config.generator_batch_factor / config.num_discriminator_steps

    assert program.flops_per_example == pytest.approx(
        2 * (discriminator + share * generator), rel=1e-9
    )


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("observations", ["state", "pixels"])
@pytest.mark.parametrize("network", ["mlp", "layer_norm_mlp"])
def test_the_learner_does_what_is_counted(observations, network):
    """From states and from frames, where the action joins early and late."""
    config = catalog.make_config(
        "d4pg",
        "smoke",
        {
            "observations": observations,
            "network": network,
            "policy_sizes": "24,20",
            "critic_sizes": "28,24,16",
            "num_conv_filters": 4,
        },
    )
    is_pixels = observations == "pixels"
    spec = PolicySpec(
        observation_shape=(84, 84, 9) if is_pixels else (24,),
        action_size=6,
        hidden_sizes=config.policy_layers,
        kind=config.network,
        num_conv_filters=config.num_conv_filters,
        num_features=config.num_features,
    )
    learner = Learner(replicator.create("single"), config, spec, seed=0)

    def args(count):
        seen = tf.TensorSpec(
            [count, *spec.observation_shape], tf.uint8 if is_pixels else tf.float32
        )
        number = tf.TensorSpec([count])
        return (
            {
                "observation": seen,
                "next_observation": seen,
                "action": tf.TensorSpec([count, 6]),
                "reward": number,
                "discount": number,
            },
            1.0,
        )

    assert d4pg_networks.training_flops(config, spec) == 2 * per_example(
        learner.loss_and_gradients, args
    )


def test_the_step_of_the_language_model_does_what_is_counted():
    """Per token, of whole sequences; attention over both halves of the mask."""
    length = 6
    program = build(
        "transformer", per_replica_batch_size=length, sequence_length=length
    )

    def tokens(count):
        return (tf.TensorSpec([count, length], tf.uint8),)

    counted = per_example(program.training.loss_and_gradients, tokens)

    assert length * program.flops_per_example == 2 * counted
