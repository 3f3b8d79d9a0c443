"""The counted arithmetic of a training step, held to graphs and published figures."""

import pytest
import small_programs
import tensorflow as tf
from graph_flops import multiply_adds

import replicator


def build(name, **options):
    return small_programs.build(name, replicator.create("single"), **options)


def per_example(function, make_args):
    """Of one more example: what does not depend on their number cancels."""
    counts = [multiply_adds(function, *make_args(count)) for count in (2, 3)]
    return counts[1] - counts[0]


def test_the_step_of_resnet50_does_what_is_counted():
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


@pytest.mark.parametrize(
    "options",
    [{"network": "mlp"}, {"observations": "pixels", "num_conv_filters": 4}],
    ids=["state", "pixels"],
)
def test_the_learner_does_what_is_counted(options):
    sizes = {"policy_sizes": "24,20", "critic_sizes": "28,24,16"}
    program = build("d4pg", **sizes, **options)
    spec = program.training.policy_spec
    dtype = tf.uint8 if "observations" in options else tf.float32

    def args(count):
        seen = tf.TensorSpec([count, *spec.observation_shape], dtype)
        number = tf.TensorSpec([count])
        batch = {
            "observation": seen,
            "next_observation": seen,
            "action": tf.TensorSpec([count, spec.action_size]),
            "reward": number,
            "discount": number,
        }
        return batch, 1.0

    counted = per_example(program.training.loss_and_gradients, args)
    assert program.flops_per_example == 2 * counted


def test_the_step_of_the_language_model_does_what_is_counted():
    length = 6
    program = build(
        "transformer", per_replica_batch_size=length, sequence_length=length
    )

    def tokens(count):
        return (tf.TensorSpec([count, length], tf.uint8),)

    counted = per_example(program.training.loss_and_gradients, tokens)

    assert length * program.flops_per_example == 2 * counted
