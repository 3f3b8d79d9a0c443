"""Programs as libraries publish them give with a strategy what they give without.

What would not equal one device is refused. Programs of libraries that are not locked
are skipped by name; ``make test-communities`` installs these and runs all.
"""

import functools
import importlib.util
from pathlib import Path

import case_cluster
import communities
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import ReplicatorError

NEEDS = {
    "keras_hub_classifier": "keras_hub",
    "keras_tuner_search": "keras_tuner",
    "orbit_controller": "orbit",
    "sonnet_vqvae": "sonnet",
    "sonnet_vqvae_ema": "sonnet",
    "tf_agents_dqn": "tf_agents",
    "tf_keras_fit": "tf_keras",
    "tfp_variational": "tensorflow_probability",
}
# Program -> why it does not run over two workers.
NOT_OVER_WORKERS = {
    "dm_control_policy": "each process acts in a world of its own",
    "keras_tuner_search": "its own distribution gives trials to workers",
    "tf_agents_dqn": "two steps of its loop in a function overlap",
}
OVER_WORKERS = [n for n in communities.PROGRAMS if n not in NOT_OVER_WORKERS]


def _installed(name):
    return importlib.util.find_spec(NEEDS.get(name, "keras")) is not None


@functools.cache
def _on_one_device(name):
    if not _installed(name):
        pytest.skip(f"{NEEDS[name]} is not installed: make test-communities has it")
    found = communities.run(name)
    assert np.all(np.isfinite(np.concatenate([np.ravel(value) for value in found])))
    return found


def _assert_equal(name, found):
    """Sums over a batch in another order, a few steps of Adam deep, in float32."""
    expected = _on_one_device(name)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("placement", ["shared", "mirrored"])
@pytest.mark.parametrize("name", communities.PROGRAMS)
def test_a_program_differs_in_its_strategy_only(name, placement):
    _on_one_device(name)
    devices = {"devices": ["CPU:0", "CPU:1"]} if placement == "mirrored" else {}
    repl = replicator.create(
        "in_graph", num_replicas=2, variable_placement=placement, **devices
    )

    _assert_equal(name, communities.run(name, repl.as_strategy()))


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    return case_cluster.ran(
        "communities",
        tmp_path_factory.mktemp("communities"),
        path=Path(__file__).parent,
        cases=[name for name in OVER_WORKERS if _installed(name)],
        num_workers=2,
    )


@pytest.mark.processes
@pytest.mark.full
@pytest.mark.parametrize("name", OVER_WORKERS)
def test_a_program_over_two_workers_gives_what_one_device_gives(request, name):
    _on_one_device(name)
    for found in request.getfixturevalue("workers").values(name):
        _assert_equal(name, found)


def _average_codes_of_a_replica(strategy):
    """Sonnet's quantizer as it is; ``sonnet_vqvae_ema`` sums over replicas."""
    pytest.importorskip("sonnet")
    communities.sonnet_vqvae_ema(strategy, averages_all=False)


VALUES = np.linspace(0, 1, 8, dtype=np.float32)


def _fit_posterior(where, strategy):
    """``tfp.vi.fit_surrogate_posterior``: write the loop, as ``tfp_variational``."""
    tfp = pytest.importorskip("tensorflow_probability")

    def fit(target):
        tfp.vi.fit_surrogate_posterior(target, posterior, optimizer, num_steps=3)

    def loss_of(values):
        return lambda z: communities.prior(z) + communities.likelihood(z, values)

    if where == "around":  # and asks for gradients through steps
        posterior, optimizer = communities.surrogate()
        data = tf.data.Dataset.from_tensors(VALUES)
        values = next(iter(strategy.experimental_distribute_dataset(data)))

        def target(z):
            found = strategy.run(communities.likelihood, args=(z, values))
            return communities.prior(z) + strategy.reduce("SUM", found, axis=None)

        fit(target)
        return
    with strategy.scope():
        posterior, optimizer = communities.surrogate()
        if where == "scope":
            fit(loss_of(VALUES))
            return
    strategy.run(lambda values: fit(loss_of(values)), args=(tf.constant(VALUES),))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            _average_codes_of_a_replica,
            r"embeddings:0' is assigned .* at .*vqvae\.py:\d+: self",
        ),
        (
            functools.partial(_fit_posterior, "scope"),
            r"applied in scope\(\) but in no step, .*strategy\.run",
        ),
        (
            functools.partial(_fit_posterior, "step"),
            r"inside a nested tf\.function .* move it out",
        ),
        (
            functools.partial(_fit_posterior, "around"),
            r"gradient of what strategy\.run\(likelihood\)",
        ),
    ],
    ids=[
        "codes of a replica",
        "loop in a scope",
        "loop in a step",
        "loop around steps",
    ],
)
def test_what_would_not_equal_one_device_is_refused(program, message):
    strategy = replicator.create("in_graph", num_replicas=2).as_strategy()

    with pytest.raises(ReplicatorError, match=message):
        program(strategy)
