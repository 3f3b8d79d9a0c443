"""Programs of all workloads: controls, compiled passes, GPUs, counted arithmetic."""

import collections
import json
import math
import re

import numpy as np
import pytest
import small_programs
import tensorflow as tf
import tiny_models
from graphs import multiply_adds
from small_programs import build as build_small

import replicator
from replicator._tf import dispatch
from replicator.core import devices
from workloads import WORKLOADS

FULL = pytest.mark.full


def build(name, backend="in_graph", num_replicas=2, **given):
    return build_small(name, backend, num_replicas, **given)


def losses_of(program, num_steps=2):
    losses = [program.run() for _ in range(num_steps)]
    assert np.isfinite(losses).all()
    small_programs.sane(program)
    return losses


def changed(program, before):
    """Parts of a program that training has changed."""
    after = program.trained_values()
    assert before.keys() == after.keys()
    return [
        key
        for key, values in before.items()
        if not all(map(np.array_equal, values, after[key]))
    ]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_precision_and_pipelines_follow_the_device(name, monkeypatch):
    def fed(program):
        inputs = program._inputs
        threading = inputs.pipelines[0].options().threading
        return inputs._num_prefetched, threading.private_threadpool_size

    on_cpus = build(name, "single", 1, tf32=False)
    is_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    # No GPU is at hand: programs are told so.
    kind = type(replicator.create("in_graph", num_replicas=1))
    monkeypatch.setattr(kind, "feeds_gpus", True)
    is_image = name in ("resnet50", "sngan")
    on_gpus = build(name, **({"num_input_threads": 3} if is_image else {}))

    assert not is_tf32
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    assert (0, 2) == (fed(on_cpus)[0], fed(on_gpus)[0])
    if is_image:
        assert (1, 6) == (fed(on_cpus)[1], fed(on_gpus)[1])


def test_tf32_cannot_be_off_where_it_would_not_reach_the_gpus(monkeypatch):
    """Workers that only serve TensorFlow keep its default; CPUs have no TF32."""
    served = replicator.create("single")
    monkeypatch.setattr(type(served), "num_programs", 1)
    monkeypatch.setattr(served, "num_workers", 2)
    build_small("transformer", served, tf32=False)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: ["GPU:0"])
    line = r"option tf32=False does not reach the GPUs of SingleDeviceReplicator, "
    with pytest.raises(ValueError, match=line):
        build_small("transformer", served, tf32=False)
    build_small("transformer", served, tf32=True)


def test_the_layout_is_set_for_the_steps_that_follow():
    build("resnet50", conv_layout="nhwc")
    found = tf.config.optimizer.get_experimental_options()
    build("resnet50")
    after = tf.config.optimizer.get_experimental_options()

    assert False is found["layout_optimizer"]
    assert after.get("layout_optimizer", True)


@pytest.mark.parametrize(
    ("name", "backend", "data"),
    [
        ("resnet50", "in_graph", "digits"),
        ("d4pg", "in_graph", "cartpole:swingup"),
        # Steps without variables run there as well.
        ("sngan", "single", "synthetic"),
    ],
)
def test_the_input_control_reads_batches_and_trains_nothing(name, backend, data):
    num_replicas = 1 if backend == "single" else 2
    program = build(name, backend, num_replicas, control="input_only", data=data)
    before = program.trained_values()
    program.start_window()
    losses = [program.run(), program.run(3)]
    program.pause()
    (check,) = program.sanity()

    assert [0.0, 0.0] == losses
    assert 4 == program._inputs.num_steps
    assert [] == changed(program, before)
    assert "not checked: this control reads batches and runs no step" == check.detail
    assert () == program.evaluate() == program.losses_of_replicas()
    if name == "d4pg":
        program.close()


@pytest.mark.parametrize(
    "name",
    ["d4pg", pytest.param("resnet50", marks=FULL), pytest.param("sngan", marks=FULL)],
)
def test_the_control_without_updates_sums_and_changes_no_weight(name):
    def bytes_of(program):
        pattern = r"all_reduce\S* .*? (\d+) bytes per replica"
        return sum(map(int, re.findall(pattern, program.explain())))

    program = build(name, control="no_update")
    plain = build(name)
    before = program.trained_values()
    losses_of(program, 3)
    plain.run()

    assert before
    assert [] == changed(program, before)
    assert bytes_of(plain) == bytes_of(program) > 0


@pytest.mark.parametrize("name", ["resnet50", "d4pg"])
def test_the_control_without_a_pipeline_repeats_the_first_batch(name):
    data = {"resnet50": "digits", "d4pg": "cartpole:swingup"}[name]
    program = build(name, control="synthetic", data=data)
    batches = program.batches()
    first, *others = (
        [[part.numpy() for part in leaf] for leaf in tf.nest.flatten(next(batches))]
        for _ in range(3)
    )

    for later in others:
        for expected, actual in zip(first, later, strict=True):
            np.testing.assert_array_equal(expected, actual)
    assert any(not np.array_equal(one, other) for one, other in first)
    if name == "d4pg":  # no actors either
        assert program.training.experiences == []
        return
    losses_of(program)
    checks = {check.name: check for check in program.sanity()}
    assert checks["no_example_twice_in_an_epoch"].detail == (
        "not checked: this control repeats the first batch of each replica"
    )


def train(name, backend, num_replicas, **settings):
    tf.keras.utils.set_random_seed(3)
    program = build(name, backend, num_replicas, **settings)
    return losses_of(program), program


def parts_of(program):
    return [v for k, v in vars(program.training).items() if "differentiate" in k]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("d4pg", "in_graph"),
        *(
            pytest.param(name, backend, marks=FULL)
            for name in ("resnet50", "sngan")
            for backend in ("in_graph", "tf_mirrored")
        ),
    ],
)
def test_a_step_whose_passes_are_compiled_has_the_same_loss(name, backend):
    plain, default = train(name, backend, 2)
    compiled, program = train(name, backend, 2, jit="compute")

    # After an update, its rounding is in the weights.
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-6)
    np.testing.assert_allclose(compiled[1], plain[1], rtol=1e-4)
    assert not any(hasattr(part, "program") for part in parts_of(default))
    assert parts_of(program)
    for part in parts_of(program):
        traced, *others = part.program._list_all_concrete_functions()
        assert traced.function_def.attr["_XlaMustCompile"].b
        assert len(traced.graph.as_graph_def().node) > 20
        assert not others or backend == "tf_mirrored"


@pytest.fixture
def dispatches(monkeypatch):
    monkeypatch.setattr(devices, "is_cpu", lambda device: device == "host")
    monkeypatch.setattr(devices, "cpu_of", devices.first_cpu)
    graphs = []
    trace = dispatch.Dispatch._trace

    def recorded(self, source):
        trace(self, source)
        graphs.append(self._traced.graph.as_graph_def())

    monkeypatch.setattr(dispatch.Dispatch, "_trace", recorded)
    return graphs


@pytest.mark.parametrize(
    "name",
    ["d4pg", pytest.param("resnet50", marks=FULL), pytest.param("sngan", marks=FULL)],
)
def test_nobody_else_writes_the_variables_of_a_program(name, dispatches):
    found = []
    for policy in ("detect", "never"):
        repl = replicator.create(
            "in_graph",
            num_replicas=2,
            devices=["CPU:0", "CPU:0"],
            variable_placement="mirrored",
            external_writes=policy,
        )
        dispatches.clear()
        tf.keras.utils.set_random_seed(5)
        losses = losses_of(build_small(name, repl, external_writes=policy))
        ops = [collections.Counter(node.op for node in g.node) for g in dispatches]
        found.append((losses, ops))

    assert found[0] == found[1]
    assert found[0][1]


# Of a workload, or of a model of one's own, values in JSON, and what is said of them.
REFUSED = r"""
resnet50 data="digits" num_classes=3 -> has 10 classes, but the network has 3: set
resnet50 per_replica_batch_size=0 -> per_replica_batch_size 0 must be at least 1
transformer per_replica_batch_size=5 -> 5 counts .* of option sequence_length=2: .* 2$
transformer num_microbatches=3 -> sequence_length=2 times num_microbatches=3: use .* 6$
keras_fit model="FILE:tiny" -> no function 'tiny'; it has copies, dense, ex
keras_fit model="FILE:not_compiled" -> Sequential, which is not a comp
keras_fit model="FILE:of_larger_images" -> 64, 64, 3\), but images are \(32, 32, 3\)
own model="tiny_models:not_compiled" -> not a compiled model; call model\.comp
own data="tiny_models:not_compiled" -> Sequential, which is not a tf\.data\.Data
own data="tiny_models:inputs_only" -> its elements have to be pairs
own jit="compute" -> takes a whole step or nothing; use jit 'off'
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_what_cannot_be_built_is_one_clear_line(row):
    given, _, message = row.replace("FILE", tiny_models.__file__).partition(" -> ")
    name, *words = given.split()
    options = {k: json.loads(v) for k, _, v in (word.partition("=") for word in words)}
    with pytest.raises(ValueError, match=message) as raised:
        build_small(name, **options)
    assert "\n" not in str(raised.value)


def test_a_workload_is_warmed_up_in_each_number_type(monkeypatch):
    info = WORKLOADS["resnet50"]
    built, make = [], type(info).build

    def note(self, repl, **options):
        built.append(make(self, repl, **options))
        return built[-1]

    monkeypatch.setattr(type(info), "build", note)
    with small_programs.short():
        dtypes = ("float32", "mixed_bfloat16")
        info.warm_up("smoke", dtypes=dtypes, per_replica_batch_size=2)

    assert ["float32", "bfloat16"] == [program.compute_dtype for program in built]
    assert [2, 2] == [program.per_replica_batch_size for program in built]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sngan", {"data": "digits", "batch_norm": "cross_replica"}),
        ("transformer", {"dropout": 0.5, "learning_rate_factor": 0.0}),
    ],
)
def test_replicas_draw_different_values_in_every_step_and_stay_equal(name, options):
    program, found = build(name, per_replica_batch_size=8, **options), set()
    for _ in range(2):
        program.run()
        found |= set(program.losses_of_replicas())

    assert 4 == len(found)
    program._repl.assert_in_sync()
    assert [] == program._repl.local_state()


@FULL
@pytest.mark.parametrize(
    ("name", "num_steps", "num_parameters", "loss"),
    [
        ("resnet50", 3, 25_557_032, pytest.approx(math.log(1000), abs=0.7)),
        ("sngan", 1, 72_038_788, pytest.approx(2.0, abs=0.5)),
    ],
)
def test_the_paper_preset_takes_steps_at_full_size(
    name, num_steps, num_parameters, loss
):
    program = small_programs.build_whole(
        name, preset="paper", per_replica_batch_size=2, seed=0
    )
    before = program.trained_values()
    losses = [program.run() for _ in range(num_steps)]

    assert num_parameters == program.num_parameters
    assert loss == losses[0]
    assert sorted(losses, reverse=True) == losses
    assert [*before] == changed(program, before)


# What computes the gradients of a step, and what it takes of a batch and of latents.
GRADIENTS = {
    "resnet50": {"loss_and_gradients": lambda batch, _: (batch,)},
    "d4pg": {"loss_and_gradients": lambda batch, _: (batch, 1.0)},
    "transformer": {"loss_and_gradients": lambda batch, _: (batch["token"],)},
    "sngan": {
        "discriminator_gradients": lambda batch, latents: (
            *(batch["image"], batch["label"]),
            *latents,
        ),
        "generator_gradients": lambda _, latents: latents,
    },
}
SIZES = {"policy_sizes": "24,20", "critic_sizes": "28,24,16"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet50", {}),
        ("sngan", {"layout": "cifar", "num_discriminator_steps": 4}),
        pytest.param("sngan", {"layout": "imagenet"}, marks=FULL),
        ("d4pg", {**SIZES, "network": "mlp"}),
        ("d4pg", {**SIZES, "observations": "pixels", "num_conv_filters": 4}),
        ("transformer", {"per_replica_batch_size": 6, "sequence_length": 6}),
    ],
)
def test_a_step_does_what_is_counted(name, options):
    """Of one more example: what does not depend on their number cancels."""
    program = build(name, "single", 1, **options)
    config = program.training.config
    shares = {"loss_and_gradients": 1 / options.get("sequence_length", 1)}
    if name == "sngan":
        factor = config.generator_batch_factor / config.num_discriminator_steps
        shares = {"discriminator_gradients": 1, "generator_gradients": factor}

    def count(function, num_examples):
        batch = {
            name: tf.TensorSpec([num_examples, *spec.shape[1:]], spec.dtype)
            for name, spec in program._inputs.element_spec.items()
        }
        latent = tf.TensorSpec([num_examples, getattr(config, "latent_size", 1)])
        latents = (latent, tf.TensorSpec([num_examples], tf.int64))
        args = GRADIENTS[name][function](batch, latents)
        return multiply_adds(getattr(program.training, function), *args)

    expected = sum(
        2 * share * (count(function, 3) - count(function, 2))
        for function, share in shares.items()
    )
    assert program.flops_per_example == pytest.approx(expected, rel=1e-9)
