"""Names and facts of the backends, readable without TensorFlow."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

# The levels of ``sharded_update``, each with those before.
STATE, GRADIENTS, PARAMETERS = "state", "gradients", "parameters"
LEVELS = (STATE, GRADIENTS, PARAMETERS)

# What the conformance suite requires of every backend. A backend has all of them except
# those that it lists as lacking, with the reason: every backend claims a new name.
CAPABILITIES: dict[str, str] = {
    "collectives": "collectives over all replicas of a step, with gradients",
    "synchronous_training": (
        "R replicas of b examples train like one replica of R x b examples"
    ),
    "sparse_gradients": "tf.IndexedSlices are summed and averaged over replicas",
    "shared_rows": (
        "rows of sparse gradients that several replicas touch are summed before the "
        "update"
    ),
    "uneven_rows": "replicas may touch different numbers of rows",
    "higher_derivatives": (
        "collectives have gradients of every order, and work in forward mode"
    ),
    "vectorized_collectives": "collectives in tf.vectorized_map and tape.jacobian",
    "loss_objects": "a Keras loss object gives the mean over the batch of a replica",
    "random_streams": "replicas draw different random streams, reproducible by a seed",
    "replica_local_state": (
        "a variable written with per-replica values keeps a copy per replica"
    ),
    "outside_changes": "a variable assigned between steps reaches every replica",
    "steps_per_execution": "run(num_steps=k) runs k steps in one dispatch",
    "input_per_worker": "PER_WORKER pipelines",
    "input_per_replica": "PER_REPLICA pipelines",
    "input_single": "one SINGLE pipeline for the whole job",
    "batches_outside_steps": "get_next() reads batches outside steps",
    "end_of_data": "the end of the data raises an error, and a rewind starts over",
    "whole_steps": "a step runs on no replica unless every replica has a batch",
    "whole_epochs": (
        "an epoch feeds every example once, also where the last step is smaller"
    ),
    "new_shapes": "batches of new shapes retrace the step and keep its state",
    "ragged_inputs": "ragged batches reach the replicas as ragged tensors",
    "fixed_inputs": "run() takes a nest of PerReplica instead of an iterator",
    "control_flow_check": "a collective in control flow raises an actionable error",
    "variable_creation_check": (
        "creating a variable in a step raises an actionable error"
    ),
    "unsynchronized_update_check": (
        "updating a trainable variable without averaging raises an actionable error"
    ),
    "fit": "fit() of Keras in scope() trains on all replicas",
    "model_parallelism": "logical_devices_per_replica and logical_device(i)",
    "pipelines": "Pipeline trains stages, one on each logical device of a replica",
    "gradient_accumulation": "updates once per k steps with the mean gradient",
    "gradient_compression": (
        "gradients are sent in 16 bits; training differs by rounding only"
    ),
    "dynamic_loss_scale": (
        "loss_scale='dynamic' adapts the scale and skips updates on all replicas"
    ),
    "sharded_update": "each replica can update a part of the variables for all",
    "sharded_gradients": (
        "sharded_update='gradients': only that replica keeps the sum of a gradient"
    ),
    "sharded_parameters": (
        "sharded_update='parameters': only that replica keeps the variable"
    ),
    "compiled_functions": (
        "a step can compute gradients in a tf.function(jit_compile=True)"
    ),
    "explained_plan": "explain() shows bytes and algorithm of each collective",
}

ONE_PROCESS = "one_process"
"""All replicas in the process that calls ``create``; no cluster."""
WORKERS = "workers"
"""Every worker process runs the user's program (between-graph replication)."""
SERVED_WORKERS = "served_workers"
"""Worker 0 runs the user's program; the others run ``python -m replicator.server``."""
PARAMETER_SERVERS = "parameter_servers"
"""A chief runs the program; workers and parameter servers run the server."""


MAX_REPLICAS = 2**16
"""Upper limit of replicas, and of their devices; all are traced into one graph."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BackendInfo:
    """What a planner needs to know about a backend."""

    name: str  # The name that users pass.
    target: str  # ``module:Class`` of the implementation.
    description: str  # One line.
    kind: str  # ``ours``, ``baseline`` or ``peer`` (a stock TensorFlow strategy).
    # Most replicas it can run, or None for ``MAX_REPLICAS``.
    max_replicas: int | None = None
    # Missing capability -> reason; see ``CAPABILITIES``.
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # How replicas are spread over processes; one of the constants above.
    processes: str = ONE_PROCESS
    not_swept_because: str = ""  # Why the harness cannot start it, or empty.
    no_control_because: str = ""  # Why it cannot run without communication, or empty.
    # Whether it looks for variables that were written outside steps, and takes
    # ``external_writes``.
    detects_writes: bool = False
    # Why a worker without GPUs runs one replica, or empty.
    one_cpu_replica_because: str = ""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.lacks) - set(CAPABILITIES))
        if unknown:
            raise ValueError(
                f"backend {self.name!r} lacks {unknown[0]!r}, which is not a "
                f"capability; use one of {', '.join(sorted(CAPABILITIES))}"
            )

    @property
    def capabilities(self) -> frozenset[str]:
        """What the backend promises and the conformance suite checks."""
        return frozenset(CAPABILITIES) - frozenset(self.lacks)

    def load(self) -> Any:
        """Imports the class of the backend, and TensorFlow with it."""
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(module), name)


# What no strategy of tf.distribute does.
_STOCK_LACKS = {
    "loss_objects": (
        "Keras divides the loss by the number of replicas, and averaging gradients "
        "divides again"
    ),
    "shared_rows": "Keras squares duplicate rows separately",
    "vectorized_collectives": (
        "a vectorized loop rewrites the graph of one replica; raises an error"
    ),
    "control_flow_check": "tf.distribute raises errors of its own, or none",
    "explained_plan": "tf.distribute does not show its plan",
    "model_parallelism": "a replica of tf.distribute is one device here",
    "pipelines": "a replica of tf.distribute is one device here",
    "gradient_accumulation": (
        "Keras reduces gradients in a branch, where a stock strategy cannot communicate"
    ),
    "dynamic_loss_scale": (
        "Keras reduces gradients in a branch, where a stock strategy cannot communicate"
    ),
    "random_streams": (
        "random ops in nested functions, and Keras' without a seed, draw the same "
        "numbers on every replica"
    ),
    "replica_local_state": (
        "local variables must be declared, and Keras averages batch-norm statistics "
        "in every step"
    ),
    "sharded_update": "all replicas update its variables",
    "sharded_gradients": "all replicas update its variables",
    "sharded_parameters": "all replicas update its variables",
    "unsynchronized_update_check": (
        "under a strategy, Keras optimizers sum gradients themselves"
    ),
    "whole_steps": ("updates that need no batch, such as counters, run without one"),
}
# On a TPU a step is one compiled program that starts when its batches have arrived, and
# it can be split over cores.
_TPU_HAS = ("model_parallelism", "whole_steps")

_OWN_PROGRAMS = "each worker runs its own program, and none feeds the others"
_ONE_ON_CPUS = "the stock strategy has one replica per worker without GPUs"
_SERVED_VARIABLES = (
    "workers read and update the variables of parameter servers: without communication "
    "they have no model"
)

# What asynchronous workers cannot do.
_ASYNC_LACKS = {
    "batches_outside_steps": (
        "pipelines are on the workers; a step can return the batch it read"
    ),
    "collectives": "they span one worker's replicas",
    "dynamic_loss_scale": (
        "the scale would change between a worker's read and its update"
    ),
    "fit": "its steps cannot be part of the tf.function that fit() makes",
    "gradient_accumulation": "accumulated gradients of all workers would mix",
    "model_parallelism": "a replica has one device, so far",
    "pipelines": "a replica has one device, so far",
    "input_single": "asynchronous workers cannot take turns on one pipeline",
    **dict.fromkeys(
        ("sharded_gradients", "sharded_parameters"),
        "each variable and its update are on one server anyway",
    ),
    "sparse_gradients": "they are averaged over the replicas of one worker only",
    "synchronous_training": "every worker updates from the values that it has read",
    "whole_steps": "a worker that has no batch does not stop the others",
    "whole_epochs": "each worker ends its own epoch, with its last whole step",
}

_SEES_ALL = "a step sees the whole batch, so nothing communicates"

_EVEN = "a mesh divides a batch evenly; raises an error"

# What a step over a mesh cannot do.
_MESH_LACKS = {
    "collectives": _SEES_ALL,
    "sparse_gradients": "DTensor has no updates by rows: gradients are made dense",
    "uneven_rows": "DTensor has no updates by rows: gradients are made dense",
    "random_streams": "a random operation draws for the whole batch",
    "replica_local_state": "a step sees the batch of all replicas, and has one state",
    "ragged_inputs": _EVEN,
    "control_flow_check": _SEES_ALL,
    "unsynchronized_update_check": (
        "a gradient is of the batch of all replicas, so every update is alike"
    ),
    "fit": "a mesh is no strategy of tf.distribute",
    "model_parallelism": "layouts split dimensions in place of logical devices",
    "pipelines": "layouts split dimensions in place of logical devices",
    "gradient_accumulation": "DTensor has no branches that update; not tried",
    "gradient_compression": "DTensor sends gradients in their own type",
    "dynamic_loss_scale": "DTensor has no branches that update; not tried",
    "sharded_update": "the layout divides variables",
    "sharded_gradients": "the layout divides variables",
    "sharded_parameters": "the layout divides variables",
    "explained_plan": "DTensor places the collectives; explain() counts them",
}

BACKENDS: dict[str, BackendInfo] = {
    info.name: info
    for info in (
        BackendInfo(
            name="single",
            target="replicator.backends.single:SingleDeviceReplicator",
            description="one replica on one device; collectives are the identity; the "
            "baseline",
            kind="baseline",
            max_replicas=1,
            no_control_because="one replica does not communicate anyway",
            lacks={
                "control_flow_check": (
                    "every collective is the identity, in control flow as well"
                ),
                "explained_plan": "nothing is communicated",
            },
        ),
        BackendInfo(
            name="in_graph",
            detects_writes=True,
            target="replicator.backends.in_graph:InGraphReplicator",
            description="synchronous replicas linked into one graph in one process",
            kind="ours",
        ),
        BackendInfo(
            name="multi_worker",
            detects_writes=True,
            target=(
                "replicator.backends.multi_worker:MultiWorkerBetweenGraphReplicator"
            ),
            description="synchronous replicas in several worker processes, one program "
            "in each, connected by collective ops",
            kind="ours",
            processes=WORKERS,
            lacks={
                "input_single": _OWN_PROGRAMS,
                "sharded_parameters": "every worker keeps the weights, so far",
            },
        ),
        BackendInfo(
            name="multi_worker_in_graph",
            detects_writes=True,
            target="replicator.backends.multi_worker:MultiWorkerInGraphReplicator",
            description="synchronous replicas of all workers in one client's graph",
            kind="ours",
            processes=SERVED_WORKERS,
        ),
        BackendInfo(
            name="async",
            target="replicator.backends.asynchronous:MultiWorkerAsyncReplicator",
            description="asynchronous workers with parameter servers",
            kind="ours",
            no_control_because=_SERVED_VARIABLES,
            lacks={
                **_ASYNC_LACKS,
                "unsynchronized_update_check": (
                    "workers share one copy; only overwriting a trainable variable "
                    "raises an error"
                ),
            },
            processes=PARAMETER_SERVERS,
        ),
        BackendInfo(
            name="tf_mirrored",
            target="replicator.backends.strategy:MirroredReplicator",
            description="tf.distribute.MirroredStrategy behind the same contract",
            kind="peer",
            lacks=_STOCK_LACKS,
        ),
        BackendInfo(
            name="tf_multi_worker",
            no_control_because=(
                "its strategy communicates where it makes variables and reads inputs "
                "as well, and takes no other collectives"
            ),
            target=("replicator.backends.strategy:MultiWorkerMirroredReplicator"),
            description="tf.distribute.MultiWorkerMirroredStrategy behind the same "
            "contract",
            one_cpu_replica_because=_ONE_ON_CPUS,
            kind="peer",
            processes=WORKERS,
            lacks={
                **_STOCK_LACKS,
                "fit": (
                    "Keras 3.15 averages scalar logs over an axis; raises an error"
                ),
                "input_single": _OWN_PROGRAMS,
                "whole_steps": (
                    "a worker without data is fed zeros until no worker has any"
                ),
            },
        ),
        BackendInfo(
            name="tpu",
            no_control_because="the TPU compiler places the collectives",
            target="replicator.backends.tpu:TpuReplicator",
            description="tf.distribute.TPUStrategy behind the same contract",
            kind="ours",
            lacks={
                **{k: v for k, v in _STOCK_LACKS.items() if k not in _TPU_HAS},
                "pipelines": "a step is one compiled program; not tried",
                **dict.fromkeys(
                    ("ragged_inputs", "whole_epochs", "uneven_rows"),
                    "steps are compiled, so shapes must be static",
                ),
            },
            not_swept_because="it needs a TPU, which the harness does not look for",
        ),
        BackendInfo(
            name="dtensor",
            no_control_because="DTensor places the collectives",
            target="replicator.backends.dtensor:DTensorReplicator",
            description="one step over a mesh of devices, split by names of dimensions",
            kind="ours",
            lacks=_MESH_LACKS,
        ),
        BackendInfo(
            name="tf_parameter_server",
            no_control_because=_SERVED_VARIABLES,
            target="replicator.backends.asynchronous:ParameterServerReplicator",
            description="tf.distribute.ParameterServerStrategy behind the same "
            "contract",
            one_cpu_replica_because=_ONE_ON_CPUS,
            kind="peer",
            lacks={
                **_STOCK_LACKS,
                **_ASYNC_LACKS,
                "compiled_functions": (
                    "XLA cannot read variables that are on parameter servers"
                ),
                **dict.fromkeys(
                    ("input_per_worker", "input_per_replica", "ragged_inputs"),
                    "the coordinator runs the same pipeline on every worker",
                ),
            },
            processes=PARAMETER_SERVERS,
        ),
    )
}


def entry_of(backend: type) -> BackendInfo:
    """Returns the entry of a backend's class, or of the class that it inherits from."""
    by_target = {info.target: info for info in BACKENDS.values()}
    targets = [f"{each.__module__}:{each.__qualname__}" for each in backend.__mro__]
    for target in targets:
        if target in by_target:
            return by_target[target]
    raise LookupError(f"{targets[0]} is not a backend of the catalogue")
