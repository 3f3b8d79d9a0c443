"""Option ``jit``: XLA computes what the graph computes, on every kind of backend."""

import importlib

import numpy as np
import pytest
import tensorflow as tf
from small_programs import build as build_small

import replicator
from workloads import catalog
from workloads.common.training import Compiled
from workloads.controls import InputOnlyProgram

# Relative; float32 has 1.2e-7, and XLA sums in another order.
LARGEST_DIFFERENCE = 1e-6
LARGEST_AFTER_UPDATE = 1e-4


def build(name, backend="single", num_replicas=1, **settings):
    repl = replicator.create(backend, num_replicas=num_replicas)
    return build_small(name, repl, **settings)


def train(name, backend, num_replicas, **settings):
    tf.keras.utils.set_random_seed(3)
    program = build(name, backend, num_replicas, **settings)
    losses = [program.run() for _ in range(2)]
    assert all(check.is_passed for check in program.sanity())
    return losses, program


def check_equal(plain, compiled):
    """Before an update to rounding; its rounding is in the weights afterwards."""
    np.testing.assert_allclose(compiled[0], plain[0], rtol=LARGEST_DIFFERENCE)
    np.testing.assert_allclose(compiled[1], plain[1], rtol=LARGEST_AFTER_UPDATE)


@pytest.fixture(
    scope="module",
    params=[
        ("d4pg", "in_graph", 2),
        ("resnet50", "single", 1),
        pytest.param(("resnet50", "in_graph", 2), marks=pytest.mark.full),
        pytest.param(("sngan", "in_graph", 2), marks=pytest.mark.full),
    ],
    ids=lambda param: "-".join(map(str, param)),
)
def both(request):
    """Losses and program without XLA, and with it; of more in the full run."""
    return [train(*request.param, jit=jit) for jit in ("off", "compute")]


def test_a_compiled_step_has_the_same_loss(both):
    """Before and after an update."""
    (plain, _), (compiled, _) = both

    check_equal(plain, compiled)


def test_the_compiled_pass_of_sngan_has_the_same_gradients():
    """That of the generator, through every layer of both networks."""
    found = []
    for jit in ("off", "compute"):
        tf.keras.utils.set_random_seed(3)
        program = build("sngan", jit=jit)
        config = program.training.config
        latents = tf.random.stateless_normal([8, config.latent_size], [0, 1])
        labels = tf.range(8, dtype=tf.int64)
        loss, gradients = program.training.differentiate_generator(latents, labels)
        found.append((loss, *gradients))
        assert (jit == "compute") == all(
            isinstance(part, Compiled) for part in parts_of(program)
        )

    plain, compiled = (
        [tf.convert_to_tensor(value).numpy() for value in values] for values in found
    )
    np.testing.assert_allclose(compiled[0], plain[0], rtol=LARGEST_DIFFERENCE)
    # A bias before batch norm has the gradient zero, so its rounding is that of others.
    sizes = [np.abs(gradient).max() for gradient in plain[1:]]
    rounding = LARGEST_DIFFERENCE * max(sizes)
    for size, one, other in zip(sizes, plain[1:], compiled[1:], strict=True):
        np.testing.assert_allclose(
            other, one, rtol=0, atol=LARGEST_AFTER_UPDATE * size + rounding
        )


def test_forward_and_backward_are_compiled(both):
    """One program of XLA per kind of step; TensorFlow raises if it cannot be one."""
    parts = parts_of(both[1][1])

    assert parts
    for part in parts:
        assert isinstance(part, Compiled)
        assert part.program._jit_compile
        (traced,) = part.program._list_all_concrete_functions()
        assert traced.function_def.attr["_XlaMustCompile"].b
        assert len(traced.graph.as_graph_def().node) > 20


def test_nothing_is_compiled_by_default(both):
    """The part is in the step as before."""
    parts = parts_of(both[0][1])

    assert parts
    assert not any(isinstance(part, Compiled) for part in parts)


def parts_of(program):
    owner = getattr(program, "learner", getattr(program, "training", program))
    return [v for k, v in vars(owner).items() if "differentiate" in k]


@pytest.mark.parametrize(
    "name",
    [
        "d4pg",
        pytest.param("resnet50", marks=pytest.mark.full),
        pytest.param("sngan", marks=pytest.mark.full),
    ],
)
def test_a_stock_strategy_compiles_the_same_part(name):
    """On virtual devices of one process."""
    # Ours is traced faster; where a step draws numbers, those of backends differ.
    backend = "in_graph" if name == "d4pg" else "tf_mirrored"
    plain, _ = train(name, backend, 2, jit="off")
    compiled, _ = train(name, "tf_mirrored", 2, jit="compute")

    check_equal(plain, compiled)


def test_a_stock_strategy_reads_without_training():
    """A step without variables is none of its steps."""
    program = build("d4pg", "tf_mirrored", 2)

    assert 0.0 == InputOnlyProgram(program).run(2)


@pytest.mark.parametrize("is_on", [False, True])
@pytest.mark.parametrize("name", sorted(catalog.WORKLOADS))
def test_tf32_is_set_explicitly(name, is_on):
    """Whatever was set before; TensorFlow's default is on."""
    tf.config.experimental.enable_tensor_float_32_execution(not is_on)
    build(name, tf32=is_on)
    found = tf.config.experimental.tensor_float_32_execution_enabled()
    build(name)

    assert is_on == found
    assert tf.config.experimental.tensor_float_32_execution_enabled()


def test_tf32_cannot_be_off_where_it_would_not_reach_the_gpus(monkeypatch):
    """Workers that only serve TensorFlow keep its default; CPUs have no TF32."""
    precision = importlib.import_module("workloads.common.training")

    class Served:
        num_programs, num_workers = 1, 2

    precision.set_tf32(Served(), is_on=False)
    found = tf.config.experimental.tensor_float_32_execution_enabled()
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: ["GPU:0"])
    with pytest.raises(
        ValueError, match=r"option tf32=False does not reach the GPUs of Served, "
    ):
        precision.set_tf32(Served(), is_on=False)
    precision.set_tf32(Served(), is_on=True)

    assert not found


@pytest.mark.parametrize("name", ["resnet50", "sngan"])
def test_the_layout_is_set_for_the_steps_that_follow(name):
    """And set back by a program that does not request one."""
    build(name, conv_layout="nhwc")
    found = tf.config.optimizer.get_experimental_options()
    build(name)
    after = tf.config.optimizer.get_experimental_options()

    assert False is found["layout_optimizer"]
    assert after.get("layout_optimizer", True)
