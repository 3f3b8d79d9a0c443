"""What libraries do that would not equal one device is refused: what the error says.

Skipped where a library is not installed; ``make test-communities`` has all.
"""

import importlib

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.errors import ReplicatorError

VALUES = np.linspace(0, 1, 8, dtype=np.float32)


@pytest.fixture
def strategy():
    return replicator.create("in_graph", num_replicas=2).as_strategy()


def test_codes_of_each_replica_are_refused_with_the_line_that_assigns_them(strategy):
    """Sonnet's quantizer as it is; ``sonnet_vqvae_ema`` sums over replicas."""
    pytest.importorskip("sonnet")
    program = importlib.import_module("communities.sonnet_vqvae_ema")

    with pytest.raises(
        ReplicatorError, match=r"embeddings:0' is assigned .* at .*vqvae\.py:\d+: self"
    ):
        program.train(strategy, average=None)


def _posterior_in_scope(program, tfp, strategy):
    """As published: the whole loop."""
    with strategy.scope():
        posterior, optimizer = program.surrogate()
        tfp.vi.fit_surrogate_posterior(
            lambda z: program.prior(z) + program.likelihood(z, VALUES),
            posterior,
            optimizer,
            num_steps=3,
        )


def _posterior_in_step(program, tfp, strategy):
    """The loop is within the step."""
    with strategy.scope():
        posterior, optimizer = program.surrogate()

    def step(values):
        tfp.vi.fit_surrogate_posterior(
            lambda z: program.prior(z) + program.likelihood(z, values),
            posterior,
            optimizer,
            num_steps=3,
        )

    strategy.run(step, args=(tf.constant(VALUES),))


def _posterior_around_step(program, tfp, strategy):
    """The loop is around steps, and asks for gradients through them."""
    posterior, optimizer = program.surrogate()
    data = tf.data.Dataset.from_tensors(VALUES)
    values = next(iter(strategy.experimental_distribute_dataset(data)))

    def target(z):
        found = strategy.run(program.likelihood, args=(z, values))
        return program.prior(z) + strategy.reduce("SUM", found, axis=None)

    tfp.vi.fit_surrogate_posterior(target, posterior, optimizer, num_steps=3)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_posterior_in_scope, r"applied in scope\(\) but in no step, .*strategy\.run"),
        (_posterior_in_step, r"inside a nested tf\.function .* move it out"),
        (_posterior_around_step, r"gradient of what strategy\.run\(likelihood\)"),
    ],
)
def test_a_loop_of_another_library_over_updates_is_refused(strategy, program, message):
    """``tfp.vi.fit_surrogate_posterior``: write the loop, as ``tfp_variational``."""
    tfp = pytest.importorskip("tensorflow_probability")
    module = importlib.import_module("communities.tfp_variational")

    with pytest.raises(ReplicatorError, match=message):
        program(module, tfp, strategy)
