"""Programs with small networks, for what does not depend on the size of a network.

A program that runs a few steps is traced and optimized for most of its time. These have
every kind of layer, of whose repetitions most are left out.

    python tests/support/small_programs.py FOLDER

writes the graphs that they run on two GPUs, of which none is needed: a file per step
and data type. In a process of its own, since the rules of oneDNN are chosen when
TensorFlow starts.
"""

import contextlib
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import covering
import graphs
import pytest
import tiny_models

import replicator
import workloads
from workloads.d4pg import EnvironmentSpec, Share, StepStreams
from workloads.resnet50 import ResNet50

WORKLOADS = {**workloads.WORKLOADS, "own": tiny_models.OWN_WORKLOAD}
(OWN,) = tiny_models.OWN_WORKLOAD.presets
# One doubling of the generator, two blocks of the discriminator; one hidden layer.
OPTIONS = {
    "d4pg": {"policy_sizes": "16", "critic_sizes": "16"},
    "keras_fit": {"model": f"{tiny_models.__file__}:small_cnn", "num_classes": 10},
    "own": {"preset": OWN.name, "data": OWN.data, **OWN.options},
    "sngan": {"layout": "imagenet", "image_size": 8},
    "transformer": {
        "num_layers": 1,
        "width": 16,
        "num_heads": 2,
        "feed_forward_width": 32,
        "sequence_length": 2,
    },
}


def published(name, **options):
    """The published settings; of D4PG from states, unless pixels are asked for."""
    states = {"observations": "state"} if name == "d4pg" else {}
    return WORKLOADS[name].make_config("paper", {**states, **options})


def build(name, *repl, **settings):
    """Builds the smoke preset of a workload with a small network."""
    with short() if name == "resnet50" else contextlib.nullcontext():
        return build_whole(name, *repl, **{**OPTIONS.get(name, {}), **settings})


def build_whole(
    name,
    repl="single",
    num_replicas=1,
    *,
    preset="smoke",
    data="synthetic",
    per_replica_batch_size=4,
    seed=1,
    control="",
    record=None,
    **options,
):
    """Builds a preset of a workload on a replicator, or on that of a backend."""
    if isinstance(repl, str):
        repl = replicator.create(repl, num_replicas=num_replicas)
    return workloads.build_control(
        WORKLOADS[name],
        repl,
        preset=preset,
        data=data,
        per_replica_batch_size=per_replica_batch_size,
        seed=seed,
        control=control,
        record=record,
        options=options,
    )


def sane(program):
    """The checks of a program by name, all of which are passed."""
    checks = {check.name: check for check in program.sanity()}
    assert all(check.is_passed for check in checks.values()), checks
    return checks


def match(make, repl):
    """Runs the first steps as a match does: losses, changes and the program."""
    changes, losses = [], []

    def record(**fields):
        changes.append(SimpleNamespace(**fields))

    program = make(repl, control="match", record=record)
    # Losses of three steps are compared, and what two of them changed.
    for has_changes in (False, True, True):
        losses.append(program.run())
        assert has_changes == bool(changes)
    return losses, changes, program


# The stem, three convolutions of each block and its projection.
NUM_CONVOLUTIONS = 1 + 2 * (3 + 1)


@contextlib.contextmanager
def short():
    """Makes networks that are built inside short: one block in each of two stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResNet50, "num_blocks", (1, 1))
        patch.setattr(ResNet50, "widths", (8, 16))
        yield


ROOT = Path(__file__).resolve().parents[2]


def make_streams(num_streams=1, steps_per_stream=100, num_actors=1, **changes):
    fields = {"observation_shape": (1,), "observation_dtype": "float32", **changes}
    share = Share(
        num_actors=num_actors,
        num_streams=num_streams,
        steps_per_stream=steps_per_stream,
        min_size=1,
    )
    return StepStreams(share, EnvironmentSpec(action_size=1, **fields))


@contextlib.contextmanager
def child(code, *words, descriptor=None):
    """A Python program, which may use a descriptor that is its last word."""
    passed = () if descriptor is None else (descriptor,)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words, *map(str, passed)],
        pass_fds=passed,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# Graphs for two GPUs.
FLOAT32 = "float32"
# By workload, the step functions of its program and the options that make them small.
STEPS = {
    "resnet50": {"step_fn": {}},
    "sngan": {"both_step": {}},
    "d4pg": {
        name: {"observations": "pixels"}
        for name in ("copy_targets", "step_fn_of_pixels")
    },
    "keras_fit": {},  # its steps are Keras'
    "transformer": {"step_fn": {"dropout": 0.1}},
}
if covering.is_full():
    # Parts of those above: of both, and without convolutions.
    STEPS["sngan"]["discriminator_step"] = {}
    STEPS["d4pg"]["step_fn"] = {}


# Workloads that take ``conv_layout``; one of them tells what it does.
WITH_LAYOUT = ("resnet50", "sngan") if covering.is_full() else ("resnet50",)


def compute_dtypes(workload):
    """The data types of a workload; without the full run, the one that is farthest.

    Graphs of float32 are those of the layout.
    """
    study = importlib.import_module(f"workloads.{workload}.study")
    found = getattr(study, "COMPUTE_DTYPES", (FLOAT32,))
    return found if covering.is_full() else found[-1:]


def gpu_graphs():
    """Workload, step function, data type and, where it is one, layout of each graph."""
    return [
        (workload, step, dtype)
        for workload in workloads.WORKLOADS
        for step in STEPS[workload]
        for dtype in compute_dtypes(workload)
    ] + [
        (workload, step, FLOAT32, *layout)
        for workload in WITH_LAYOUT
        for step in STEPS[workload]
        for layout in (("nhwc",), ())
        if layout or not covering.is_full()
    ]


def write_gpu_graphs(folder):
    gpus = [f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in (0, 1)]
    built = {}

    def build_once(workload, **options):
        """Builds a program for all of its steps."""
        key = (workload, *options.items())
        if key not in built:
            with graphs.listed(gpus):
                repl = replicator.create("in_graph", num_replicas=2, devices=gpus)
            # No batch can go there.
            with mock.patch.object(
                replicator.InGraphReplicator, "feeds_gpus", new=False
            ):
                built[key] = build(
                    workload, repl, per_replica_batch_size=2, seed=0, **options
                )
        return built[key]

    for workload, step, dtype, *layout in gpu_graphs():
        options = dict(STEPS[workload][step])
        if layout:
            options["conv_layout"] = layout[0]
        if dtype != FLOAT32:
            options["compute_dtype"] = dtype
        program = build_once(workload, **options)
        name = step.removesuffix("_of_pixels")
        specs = [] if name == "copy_targets" else [program._inputs.element_spec]
        step_fn = getattr(program.training, name)
        graph_def = graphs.graph_def_of(program._repl.build_step(step_fn, specs))
        for node in graph_def.node:
            if any(text.startswith("capture_") for text in node.input):
                # The variable is on the CPU, since its GPU is not there.
                node.device = gpus[int(node.name.removeprefix("replica_")[0])]
        path = folder / ".".join([workload, step, dtype, *layout])
        path.write_bytes(graph_def.SerializeToString())


if __name__ == "__main__":
    write_gpu_graphs(Path(sys.argv[1]))
