"""Programs of all workloads: controls, queued steps, XLA, and how GPUs are fed."""

import collections
import re

import numpy as np
import pytest
import short_resnet
import tensorflow as tf
from small_programs import build as build_small

import replicator
from replicator._tf import dispatch
from replicator.core import devices
from workloads import catalog, warm_up
from workloads.common import training
from workloads.controls import (
    InputOnlyProgram,
    NotUpdatingReplicator,
    ReusingReplicator,
)

FULL = pytest.mark.full
# cartpole has a small body.
DATA = {"d4pg": "cartpole:swingup", "keras_fit": "digits"}


def build(name, backend="in_graph", num_replicas=2, *, wrap=lambda repl: repl, **given):
    return build_small(
        name, wrap(replicator.create(backend, num_replicas=num_replicas)), **given
    )


def data_of(name):
    return DATA.get(name, catalog.WORKLOADS[name].builtin_data[0])


def losses_of(program, num_steps=2):
    losses = [program.run() for _ in range(num_steps)]
    assert np.isfinite(losses).all()
    assert all(check.is_passed for check in program.sanity()), program.sanity()
    return losses


def prefetched(program):
    """Batches that wait on each device, or 0."""
    prefetch = program._inputs._prefetch
    return 0 if prefetch is None else prefetch.num_batches


def num_threads(program):
    return program._inputs.pipelines[0].options().threading.private_threadpool_size


@pytest.mark.parametrize("name", sorted(catalog.WORKLOADS))
def test_precision_and_pipelines_follow_the_device(name, monkeypatch):
    """TF32 as asked; two batches wait on each GPU, and none where CPUs compute."""
    on_cpus = build(name, "single", 1, tf32=False)
    is_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    # No GPU is at hand: programs are told so.
    kind = type(replicator.create("in_graph", num_replicas=1))
    monkeypatch.setattr(kind, "feeds_gpus", True)
    is_image = name in ("resnet50", "sngan")
    on_gpus = build(name, **({"num_input_threads": 3} if is_image else {}))

    assert not is_tf32
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    assert (0, 2) == (prefetched(on_cpus), prefetched(on_gpus))
    if is_image:
        assert (1, 6) == (num_threads(on_cpus), num_threads(on_gpus))
    if name == "d4pg":
        losses_of(on_gpus, 1)


def test_tf32_cannot_be_off_where_it_would_not_reach_the_gpus(monkeypatch):
    """Workers that only serve TensorFlow keep its default; CPUs have no TF32."""

    class Served:
        num_programs, num_workers = 1, 2

    training.set_tf32(Served(), is_on=False)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: ["GPU:0"])
    with pytest.raises(
        ValueError, match=r"option tf32=False does not reach the GPUs of Served, "
    ):
        training.set_tf32(Served(), is_on=False)
    training.set_tf32(Served(), is_on=True)


def test_the_layout_is_set_for_the_steps_that_follow():
    """And set back by a program that does not request one."""
    build("resnet50", conv_layout="nhwc")
    found = tf.config.optimizer.get_experimental_options()
    build("resnet50")
    after = tf.config.optimizer.get_experimental_options()

    assert False is found["layout_optimizer"]
    assert after.get("layout_optimizer", True)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("resnet50", "in_graph"),
        ("transformer", "in_graph"),
        ("d4pg", "in_graph"),
        ("keras_fit", "in_graph"),
        # Steps without variables run there as well.
        ("sngan", "single"),
        ("resnet50", "tf_mirrored"),
    ],
)
def test_the_input_control_reads_batches_and_trains_nothing(name, backend):
    """As many as steps would read; its record says that nothing was checked."""
    program = build(name, backend, 1 if backend == "single" else 2, data=data_of(name))
    control = InputOnlyProgram(program)
    before = program.trained_values()
    control.start_window()
    losses = [control.run(), control.run(3)]
    control.pause()
    after = program.trained_values()
    (check,) = control.sanity()

    assert [0.0, 0.0] == losses
    assert 4 == program._inputs.num_steps
    assert before
    for key, values in before.items():
        for one, other in zip(values, after[key], strict=True):
            np.testing.assert_array_equal(one, other)
    assert "not checked: this control reads batches and runs no step" == check.detail
    assert () == control.evaluate() == control.losses_of_replicas()
    if name == "d4pg":
        program.close()


@pytest.mark.parametrize(
    "name",
    ["d4pg", pytest.param("resnet50", marks=FULL), pytest.param("sngan", marks=FULL)],
)
def test_the_control_without_updates_sums_and_changes_no_weight(name):
    """The plan still has the communication of the step, and its bytes."""

    def bytes_of(program):
        return sum(
            int(count)
            for count in re.findall(
                r"all_reduce\S* .*? (\d+) bytes per replica", program.explain()
            )
        )

    program, plain = build(name, wrap=NotUpdatingReplicator), build(name)
    before = program.trained_values()
    losses_of(program, 3)
    plain.run()
    after = program.trained_values()

    assert before
    for key, values in before.items():
        for one, other in zip(values, after[key], strict=True):
            np.testing.assert_array_equal(one, other)
    assert bytes_of(plain) == bytes_of(program) > 0


@pytest.mark.parametrize(
    "name", ["resnet50", pytest.param("sngan", marks=FULL), "d4pg"]
)
def test_the_control_without_a_pipeline_repeats_the_first_batch(name):
    """That of each replica; which examples were read is not checked."""
    program = build(name, wrap=ReusingReplicator, data=data_of(name))
    batches = program.batches()
    first, *others = (
        [[part.numpy() for part in leaf] for leaf in tf.nest.flatten(next(batches))]
        for _ in range(3)
    )
    losses_of(program)
    checks = {check.name: check for check in program.sanity()}

    for later in others:
        for expected, actual in zip(first, later, strict=True):
            np.testing.assert_array_equal(expected, actual)
    assert any(not np.array_equal(one, other) for one, other in first)
    if name == "d4pg":  # no actors either
        assert program.training.experiences == []
        assert program.window_metrics() is not None
    else:
        assert checks["no_example_twice_in_an_epoch"].detail == (
            "not checked: this control repeats the first batch of each replica"
        )


def test_a_wrapped_replicator_passes_every_argument_on():
    """Such as a pipeline for each replica."""
    repl = ReusingReplicator(replicator.create("in_graph", num_replicas=2))
    inputs = repl.make_input_iterator(
        lambda context: tf.data.Dataset.range(
            10 * context.input_pipeline_id, 100
        ).batch(1),
        replicator.InputReplicationMode.PER_REPLICA,
    )

    read = [[int(v[0]) for v in inputs.get_next()] for _ in range(3)]
    assert read == [[0, 10]] * 3


def test_replicas_that_do_not_communicate_are_not_compared():
    """The other checks of a trial hold for this control as well."""
    repl = replicator.create("in_graph", num_replicas=2, without_communication=True)
    program = build_small("d4pg", repl)
    losses_of(program, 1)
    checks = {check.name: check for check in program.sanity()}

    assert checks["replicas_in_sync"].detail == (
        "not checked: this control keeps its 2 replicas from communicating, so their "
        "variables differ"
    )


@pytest.mark.parametrize(
    "case",
    [
        ("resnet50", "single", 1),
        pytest.param(("resnet50", "in_graph", 2), marks=FULL),
        pytest.param(("sngan", "in_graph", 2), marks=FULL),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_losses_can_be_read_after_later_steps_have_started(case):
    """Equal to the last bit; so are the checks, which count examples."""
    found = []
    for is_queued in (True, False):
        tf.keras.utils.set_random_seed(1)
        program = build(*case, data="digits")
        readers = [program.dispatch if is_queued else program.run for _ in range(3)]
        if is_queued:
            readers = [dispatch() for dispatch in readers]
        losses = [(read(), program.losses_of_replicas()) for read in readers]
        found.append((losses, program.sanity()))

    (queued, queued_checks), (one_by_one, checks) = found
    assert queued == one_by_one
    assert 3 == len({loss for loss, _ in queued})
    assert [check.name for check in queued_checks] == [check.name for check in checks]
    assert all(check.is_passed for check in (*queued_checks, *checks))


def train(name, backend, num_replicas, **settings):
    tf.keras.utils.set_random_seed(3)
    program = build(name, backend, num_replicas, **settings)
    return losses_of(program), program


def parts_of(program):
    """The forward and backward passes of a program."""
    return [v for k, v in vars(program.training).items() if "differentiate" in k]


def check_equal(plain, compiled):
    """Before an update to rounding; its rounding is in the weights afterwards."""
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-6)
    np.testing.assert_allclose(compiled[1], plain[1], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "plain_on", "compiled_on"),
    [
        ("resnet50", "single", "single"),
        ("d4pg", "in_graph", "in_graph"),
        # Ours is traced faster; where a step draws numbers, those of backends differ.
        ("d4pg", "in_graph", "tf_mirrored"),
        pytest.param("resnet50", "in_graph", "in_graph", marks=FULL),
        pytest.param("sngan", "in_graph", "in_graph", marks=FULL),
        pytest.param("resnet50", "tf_mirrored", "tf_mirrored", marks=FULL),
        pytest.param("sngan", "tf_mirrored", "tf_mirrored", marks=FULL),
    ],
)
def test_a_step_whose_passes_are_compiled_has_the_same_loss(
    name, plain_on, compiled_on
):
    """Before and after an update; by default nothing is compiled."""
    count = 1 if plain_on == "single" else 2
    plain, default = train(name, plain_on, count)
    compiled, program = train(name, compiled_on, count, jit="compute")

    check_equal(plain, compiled)
    assert not any(isinstance(part, training.Compiled) for part in parts_of(default))
    assert parts_of(program)
    for part in parts_of(program):
        traced, *others = part.program._list_all_concrete_functions()
        assert traced.function_def.attr["_XlaMustCompile"].b
        assert len(traced.graph.as_graph_def().node) > 20
        assert not others or compiled_on == "tf_mirrored"


def test_the_compiled_pass_of_sngan_has_the_same_gradients():
    """The generator's, through every layer of both networks."""
    found = []
    for jit in ("off", "compute"):
        tf.keras.utils.set_random_seed(3)
        program = build("sngan", "single", 1, jit=jit)
        latents = tf.random.stateless_normal(
            [8, program.training.config.latent_size], [0, 1]
        )
        loss, gradients = program.training.differentiate_generator(
            latents, tf.range(8, dtype=tf.int64)
        )
        found.append([tf.convert_to_tensor(v).numpy() for v in (loss, *gradients)])

    plain, compiled = found
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-6)
    # A bias before batch norm has the gradient zero, so its rounding is that of others.
    sizes = [np.abs(gradient).max() for gradient in plain[1:]]
    for size, one, other in zip(sizes, plain[1:], compiled[1:], strict=True):
        np.testing.assert_allclose(
            other, one, rtol=0, atol=1e-4 * size + 1e-6 * max(sizes)
        )


@pytest.mark.parametrize("name", ["resnet50", pytest.param("sngan", marks=FULL)])
def test_training_on_bytes_starts_with_the_same_loss(name):
    """Pixels are only rounded, by at most 0.2 % of their scale."""
    (plain, *_), _ = train(name, "single", 1)
    (of_bytes, *_), program = train(name, "single", 1, input_dtype="uint8")

    assert tf.uint8 == program._inputs.element_spec["image"].dtype
    assert plain == pytest.approx(of_bytes, rel=0.02)


def test_replicas_say_whether_they_are_fed_on_gpus(monkeypatch):
    """By the devices that receive batches."""
    repl = replicator.create("in_graph", num_replicas=2)
    assert not repl.feeds_gpus
    gpu = "/job:localhost/replica:0/task:0/device:GPU:0"
    monkeypatch.setattr(type(repl), "_input_devices", lambda _: [gpu, gpu])
    assert repl.feeds_gpus


@pytest.fixture
def dispatches(monkeypatch):
    """The graphs that are traced to be started, with all devices taken for GPUs."""
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
    """As presets for GPUs promise: without the promise nothing is compared either."""
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


def test_a_workload_is_warmed_up_in_each_number_type(monkeypatch):
    """On CPUs, with a short network: what would end it on a GPU ends it here."""
    monkeypatch.setattr(warm_up, "_PER_REPLICA_BATCH_SIZE", 2)
    from workloads.resnet50.study import WORKLOAD

    built, make = [], type(WORKLOAD).build

    def note(self, repl, **options):
        built.append(make(self, repl, **options))
        return built[-1]

    monkeypatch.setattr(type(WORKLOAD), "build", note)
    with short_resnet.short():
        warm_up.warm_up("resnet50", "smoke", ("float32", "mixed_bfloat16"))

    assert ["float32", "bfloat16"] == [program.compute_dtype for program in built]
    assert [2, 2] == [program.per_replica_batch_size for program in built]
