"""``fit`` as a workload: its loop, Keras' and own models, two replicas against one."""

import functools
import gc
import re
import threading
import types

import keras
import pytest
import tiny_models
from command_lines import install
from fake_machine import with_cpus
from small_programs import WORKLOADS, build, match, sane

import replicator
from harness import main as run_harness
from results import change_differences, loss_difference
from workloads import keras_workload

__all__ = ["install"]

# Sums of float32 in another order.
TOLERANCE = 1e-5
# Of the small model on digits, in float64.
GOLDEN_LOSSES = (3.1339831, 3.5767255, 2.6306293)
FULL = pytest.mark.full


def made(name="keras_fit", *backend, **options):
    keras.utils.set_random_seed(1)
    data = {"data": "digits"} if name == "keras_fit" else {}
    size = 4 if backend else 8  # of two replicas, or of one
    return build(name, *backend, **{"per_replica_batch_size": size, **data, **options})


def test_the_default_is_the_resnet_of_keras():
    """Its parameters are those that Keras' documentation states, less statistics."""
    default = WORKLOADS["keras_fit"].make_config("smoke", {})
    options = {"model": default.model, "num_classes": default.num_classes}
    program = made(data="synthetic", **options)
    model = program.training.model

    assert 25_583_592 == program.num_parameters
    # Of our own ResNet-50, v1: tests/workloads/resnet50/test_model.py.
    assert 479_625_216 == program.flops_per_example
    assert model.compiled
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    # The list of applications needs no TensorFlow; this test does.
    with pytest.raises(ValueError, match="must be one of 'ConvNeXtTiny'") as refused:
        WORKLOADS["keras_fit"].make_config("smoke", {"model": "none"})
    names = re.findall(r"'(\w+)'", str(refused.value).partition("one of")[2])
    assert len(names) > 30
    assert all(callable(getattr(keras.applications, name)) for name in names)


def _matched(name, loop, backend="single"):
    options = {"loop": loop, **WORKLOADS[name].equivalence.options}
    repl = replicator.create(backend, num_replicas=1 if backend == "single" else 2)
    options["per_replica_batch_size"] = 8 // repl.num_replicas
    make = functools.partial(made, name, **options)
    losses, changes, program = match(make, repl)
    sane(program)
    program.close()
    return losses, changes


@pytest.fixture(scope="module")
def one_replica():
    return functools.cache(_matched)


@pytest.mark.parametrize(
    ("name", "loop", "backend", "tolerance"),
    [
        ("keras_fit", "fit", "in_graph", TOLERANCE),
        pytest.param("keras_fit", "fit", "tf_mirrored", TOLERANCE, marks=FULL),
        pytest.param("keras_fit", "run", "in_graph", TOLERANCE, marks=FULL),
        pytest.param("keras_fit", "run", "tf_mirrored", TOLERANCE, marks=FULL),
        # Losses are float32.
        ("own", "run", "tf_mirrored", 1e-6),
        pytest.param("own", "fit", "in_graph", 1e-6, marks=FULL),
        pytest.param("own", "run", "in_graph", 1e-6, marks=FULL),
    ],
)
def test_two_replicas_match_one(name, loop, backend, tolerance, one_replica):
    one, changes_of_one = one_replica(name, loop)
    two, changes_of_two = _matched(name, loop, backend)
    differences = change_differences(changes_of_two, changes_of_one)

    if name == "keras_fit":
        assert list(GOLDEN_LOSSES) == pytest.approx(one, rel=1e-4)
    assert loss_difference(two, one) < tolerance
    assert {"model", "optimizer"} == {group for group, _ in differences}
    assert max(differences.values()) < tolerance


def test_fit_reads_one_pipeline_in_each_program():
    """Those of workers that only serve cannot be merged: a dataset cannot be sent."""
    program = made(data="synthetic")
    for is_fit, num_programs, mode in (
        (True, 1, "SINGLE"),
        (True, 2, "PER_WORKER"),
        (False, 1, "PER_WORKER"),
    ):
        program._repl = types.SimpleNamespace(num_programs=num_programs, num_workers=2)
        program.training.is_fit = is_fit

        assert replicator.InputReplicationMode[mode] is program._input_mode()


def test_fit_is_one_call_that_waits_between_steps(monkeypatch):
    calls = []
    fit = keras.Model.fit

    def recorded(self, *args, **kwargs):
        calls.append(kwargs)
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(keras.Model, "fit", recorded)
    options = {"data": "synthetic", "loop": "fit"}
    program = made("keras_fit", "in_graph", 2, **options)
    program.steps_per_epoch = 4
    losses = [program.run()]
    readers = [program.dispatch() for _ in range(2)]
    losses += [read() for read in readers]
    assert () == program.evaluate()  # while fit waits
    losses += [program.run(), program.run()]
    updates = int(program.training.optimizer.iterations)

    assert 5 == updates == program._num_steps
    assert 1 == len(calls)
    assert 4 == calls[0]["steps_per_epoch"]
    assert max(losses[3:]) < losses[0]  # one batch, again and again
    program.close()
    assert "fit" not in {thread.name for thread in threading.enumerate()}


def test_losses_are_those_of_steps_not_the_means_that_keras_logs():
    losses = {}
    for loop in ("fit", "run"):
        program = made(data="synthetic", loop=loop)
        program.steps_per_epoch = 3
        for layer in program.training.model.layers:
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
        losses[loop] = [program.run() for _ in range(4)]
        program.close()

    assert losses["run"] == pytest.approx(losses["fit"], rel=TOLERANCE)


def test_a_program_that_is_forgotten_ends_its_thread():
    program = made(data="synthetic")
    program.run()
    thread = program._loop._thread
    del program
    gc.collect()
    thread.join(timeout=10)

    assert not thread.is_alive()


def test_an_error_in_fit_is_raised_where_the_step_is_waited_for(monkeypatch):
    program = made(data="synthetic")

    def fail(*_):
        raise RuntimeError("no such step")

    monkeypatch.setattr(type(program.training.model), "train_step", fail)
    read = program.dispatch()

    with pytest.raises(RuntimeError, match="no such step"):
        read()


@pytest.mark.usefixtures("install")
def test_backends_without_fit_are_refused_with_those_that_have_it(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def planned(*options):
        words = ("sweep", "--dry-run", "--replicas=1,2", "--mode=weak")
        code = run_harness((*words, "--backends=async", *options))
        return code, capsys.readouterr().err

    code, err = planned("--workload=keras_fit", "--preset=smoke")
    refused = re.fullmatch(
        r"error: workload keras_fit does not work on backend 'async': its steps cannot"
        r" be part of .*; use --backends (single,in_graph,.*), or leave the workload"
        r" out\n",
        err,
    )
    assert 2 == code
    assert {"multi_worker", "tf_mirrored"} <= set(refused[1].split(","))
    code, err = planned("--workload=tiny_models:OWN_WORKLOAD", "--option=loop=fit")
    assert 2 == code
    assert "option loop='fit' does not work on backend" in err
    code, err = planned("--workload=tiny_models:OWN_WORKLOAD", "--option=loop=run")
    assert 0 == code, err


def test_the_control_without_update_is_left_out_with_a_note(tmp_path, capsys):
    words = "sweep --dry-run --workload keras_fit --preset smoke --backends in_graph"
    words += f" --replicas 1,2 --controls nosync,no_update --runs-dir {tmp_path}"

    assert 0 == run_harness(words.split(), run_overrides=with_cpus(range(2)))
    printed = " ".join("".join(capsys.readouterr()).split())
    assert "no control no_update of backend in_graph: Keras updates inside" in printed
    assert "no control nosync" not in printed


def test_a_model_learns_as_it_is_written():
    program = made("own", "in_graph", 2)
    losses = [program.run(4) for _ in range(6)]

    assert losses[-1] < losses[0]
    assert "float32" == program.training.model.layers[0].compute_dtype
    assert 0.5 == program.training.model.layers[2].rate
    assert 24 == program._num_steps == int(program.training.optimizer.iterations)
    assert () == program.evaluate()


def test_functions_that_a_trial_cannot_find_are_refused():
    with pytest.raises(ValueError, match="cannot be found by the process of a trial"):
        keras_workload("own", lambda: None, tiny_models.own_data)
