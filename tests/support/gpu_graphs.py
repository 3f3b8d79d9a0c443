"""Writes the graphs that workloads run on two GPUs, of which none is needed.

    python tests/support/gpu_graphs.py <folder>

One file per step and data type: what the optimizer of graphs made of it. In a process
of its own, since the rules of oneDNN are chosen when TensorFlow starts.
"""

import importlib
import pathlib
import sys

import covering

from workloads.catalog import WORKLOADS

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


def cases():
    """Workload, step function, data type and, where it is one, layout of each graph."""
    return [
        (workload, step, dtype)
        for workload in WORKLOADS
        for step in STEPS[workload]
        for dtype in compute_dtypes(workload)
    ] + [
        (workload, step, FLOAT32, *layout)
        for workload in WITH_LAYOUT
        for step in STEPS[workload]
        for layout in (("nhwc",), ())
        if layout or not covering.is_full()
    ]


class _TracedError(Exception):
    """Ends a run after the trace, before anything is executed."""


def main(folder):
    import small_programs

    import replicator
    from replicator.core.devices import make_topology
    from replicator.engine import optimize

    gpus = make_topology(
        [[f"/job:localhost/replica:0/task:0/device:GPU:{index}"] for index in (0, 1)]
    )
    found, for_devices = [], optimize.optimize

    def optimize_for_gpus(traced, *_):
        found.append(for_devices(traced, gpus))
        raise _TracedError

    optimize.optimize = optimize_for_gpus
    built = {}

    def build(workload, **options):
        """Builds a program that is small, once for all of its steps."""
        key = (workload, *options.items())
        if key not in built:
            repl = replicator.create("in_graph", num_replicas=2, devices=["CPU:0"] * 2)
            program = small_programs.build(
                workload, repl, per_replica_batch_size=2, seed=0, **options
            )
            built[key] = repl, program
        return built[key]

    for workload, step, dtype, *layout in cases():
        options = dict(STEPS[workload][step])
        if layout:
            options["conv_layout"] = layout[0]
        if dtype != FLOAT32:
            options["compute_dtype"] = dtype
        repl, program = build(workload, **options)
        name = step.removesuffix("_of_pixels")
        inputs = [] if name == "copy_targets" else [program._inputs]
        try:
            repl.run(getattr(program.training, name), *inputs)
        except _TracedError:
            path = folder / ".".join([workload, step, dtype, *layout])
            path.write_bytes(found.pop().SerializeToString())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
