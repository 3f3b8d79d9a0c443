"""Names and facts of the backends, readable without TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# What the conformance suite asks of every backend. A backend has them all, but for
# those that it says it lacks, and why: a new name is claimed by every backend at once.
CAPABILITIES: dict[str, str] = {
    "collectives": "collectives over all replicas of a step, with gradients",
    "synchronous_training": (
        "R replicas of b examples train like one replica of R x b examples"
    ),
    "sparse_gradients": "tf.IndexedSlices are summed and averaged over replicas",
    "shared_rows": (
        "rows of sparse gradients that several replicas touch are added up before the "
        "update"
    ),
    "uneven_rows": "replicas may touch different numbers of rows",
    "higher_derivatives": (
        "collectives have gradients of every order, and work in forward mode"
    ),
    "vectorized_collectives": "collectives in tf.vectorized_map and tape.jacobian",
    "loss_objects": "a Keras loss object gives the mean over the batch of a replica",
    "random_streams": "replicas draw different streams, which a seed repeats",
    "replica_local_state": (
        "a variable written with per-replica values keeps a copy per replica"
    ),
    "outside_changes": "a variable assigned between steps reaches every replica",
    "several_steps": "run(num_steps=k) runs k steps in one dispatch",
    "input_per_worker": "PER_WORKER pipelines",
    "input_per_replica": "PER_REPLICA pipelines",
    "input_single": "one SINGLE pipeline for the whole job",
    "batches_outside_steps": "get_next() reads batches outside steps",
    "end_of_data": "the end of the data is an error, and a rewind starts again",
    "whole_steps": "a step that cannot be fed on every replica runs on none",
    "new_shapes": "batches of new shapes trace the step again and keep its state",
    "ragged_inputs": "ragged batches reach the replicas as they are",
    "fixed_inputs": "run() takes a nest of PerReplica instead of an iterator",
    "control_flow_check": "a collective in control flow is refused with a lesson",
    "variable_creation_check": "a variable made in a step is refused with a lesson",
    "unsynchronized_update_check": (
        "training replicas apart by accident is refused with a lesson"
    ),
    "model_parallelism": "logical_devices_per_replica and logical_device(i)",
    "gradient_accumulation": "updates once per k steps with the mean gradient",
    "gradient_compression": (
        "gradients travel in 16 bits, and train like whole ones within the rounding"
    ),
    "dynamic_loss_scale": "loss_scale='dynamic' adapts, and skips, on all replicas",
    "sharded_update": "each replica may update a share of the variables for all",
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
"""Most replicas, and devices of theirs; each is traced into one graph."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BackendInfo:
    """What a planner needs to know of a backend.

    Attributes:
      name: The name users type.
      target: ``module:Class`` of the implementation.
      description: One line.
      kind: ``ours``, ``baseline`` or ``peer`` (a stock TensorFlow strategy).
      max_replicas: Most replicas it can run, or None for ``MAX_REPLICAS``.
      lacks: Capability it does not have -> why not; see ``CAPABILITIES``.
      processes: How replicas are spread over processes; one of the constants above.
      not_swept_because: Why the harness cannot start it by itself, or empty.
    """

    name: str
    target: str
    description: str
    kind: str
    max_replicas: int | None = None
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    processes: str = ONE_PROCESS
    not_swept_because: str = ""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.lacks) - set(CAPABILITIES))
        if unknown:
            raise ValueError(
                f"backend {self.name!r} lacks {unknown[0]!r}, which is no capability; "
                f"use one of {', '.join(sorted(CAPABILITIES))}"
            )

    @property
    def capabilities(self) -> frozenset[str]:
        """What the backend promises, and the conformance suite holds it to."""
        return frozenset(CAPABILITIES) - frozenset(self.lacks)


# What tf.distribute does not do, whatever its strategy.
_STOCK_LACKS = {
    "loss_objects": (
        "Keras divides the loss by the number of replicas under a strategy; the "
        "average of gradients over replicas then divides again"
    ),
    "shared_rows": (
        "Keras joins the rows of all replicas in its update, and squares each of those "
        "that come twice"
    ),
    "vectorized_collectives": (
        "a vectorized loop rewrites the graph of one replica; refused by name"
    ),
    "control_flow_check": "tf.distribute fails in its own words, or not at all",
    "explained_plan": "tf.distribute does not show its plan",
    "model_parallelism": "a replica of tf.distribute is one device here",
    "gradient_accumulation": (
        "Keras reduces in the branch that accumulates, where a stock strategy refuses "
        "to communicate"
    ),
    "dynamic_loss_scale": (
        "Keras reduces in the branch that skips, where a stock strategy refuses to "
        "communicate"
    ),
    "random_streams": (
        "a random op in a nested tf.function and an unseeded random function of Keras "
        "draw the same on every replica"
    ),
    "replica_local_state": (
        "which variables are local is declared, and Keras declares batch-norm "
        "statistics as averaged in every step"
    ),
    "sharded_update": "its variables are updated by all replicas",
    "unsynchronized_update_check": (
        "Keras optimizers sum gradients by themselves under a strategy"
    ),
    "whole_steps": (
        "updates that need no batch, such as counters, run in a step that has none"
    ),
}
# On a TPU a step is one compiled program, which starts when its batches are there, and
# may be split over cores.
_TPU_HAS = ("model_parallelism", "whole_steps")

_OWN_PROGRAMS = "each worker runs a program of its own, and none feeds the others"

# What workers that do not wait for each other cannot do.
_ASYNC_LACKS = {
    "batches_outside_steps": (
        "pipelines are on the workers; a step can return what it read"
    ),
    "collectives": "they join the replicas of one worker, not workers",
    "dynamic_loss_scale": (
        "the scale would change between a worker's read and its update"
    ),
    "gradient_accumulation": "accumulated gradients of all workers would mix",
    "model_parallelism": "replicas of one device each, so far",
    "input_single": "workers that do not wait cannot be dealt one pipeline in turn",
    "sparse_gradients": "they are averaged over the replicas of one worker only",
    "synchronous_training": "every worker updates from the values that it has read",
    "whole_steps": "a worker that has no batch does not stop the others",
}

BACKENDS: dict[str, BackendInfo] = {
    info.name: info
    for info in (
        BackendInfo(
            name="single",
            target="replicator.backends.single:SingleDeviceReplicator",
            description="one replica on one device; the identity, and the baseline",
            kind="baseline",
            max_replicas=1,
            lacks={
                "control_flow_check": (
                    "every collective is the identity, in control flow as well"
                ),
                "explained_plan": "nothing is communicated",
            },
        ),
        BackendInfo(
            name="in_graph",
            target="replicator.backends.in_graph:InGraphReplicator",
            description="synchronous replicas linked into one graph of one process",
            kind="ours",
        ),
        BackendInfo(
            name="multi_worker",
            target=(
                "replicator.backends.multi_worker_between_graph:"
                "MultiWorkerBetweenGraphReplicator"
            ),
            description="synchronous replicas of several worker processes, one program "
            "in each, joined by collective ops",
            kind="ours",
            processes=WORKERS,
            lacks={
                "input_single": _OWN_PROGRAMS,
            },
        ),
        BackendInfo(
            name="multi_worker_in_graph",
            target=(
                "replicator.backends.multi_worker_in_graph:MultiWorkerInGraphReplicator"
            ),
            description="synchronous replicas of all workers in one client's graph",
            kind="ours",
            processes=SERVED_WORKERS,
        ),
        BackendInfo(
            name="async",
            target="replicator.backends.asynchronous:MultiWorkerAsyncReplicator",
            description="workers that do not wait for each other; parameter servers",
            kind="ours",
            lacks={
                **_ASYNC_LACKS,
                "unsynchronized_update_check": (
                    "workers share one copy, to which every optimizer may add; only "
                    "overwriting a trained variable is refused"
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
            target=(
                "replicator.backends.tf_multi_worker:MultiWorkerMirroredReplicator"
            ),
            description="tf.distribute.MultiWorkerMirroredStrategy behind the same "
            "contract",
            kind="peer",
            processes=WORKERS,
            lacks={
                **_STOCK_LACKS,
                "input_single": _OWN_PROGRAMS,
                "whole_steps": (
                    "a worker whose data ended is fed zeros until the data of all has"
                ),
            },
        ),
        BackendInfo(
            name="tpu",
            target="replicator.backends.tpu:TpuReplicator",
            description="tf.distribute.TPUStrategy behind the same contract",
            kind="ours",
            lacks={
                **{k: v for k, v in _STOCK_LACKS.items() if k not in _TPU_HAS},
                "ragged_inputs": "steps are compiled, so shapes must be static",
                "uneven_rows": "steps are compiled, so shapes must be static",
            },
            not_swept_because="it needs a TPU, which the harness does not look for",
        ),
        BackendInfo(
            name="tf_parameter_server",
            target="replicator.backends.parameter_server:ParameterServerReplicator",
            description="ParameterServerStrategy of tf.distribute behind the contract",
            kind="peer",
            lacks={
                **_STOCK_LACKS,
                **_ASYNC_LACKS,
                "input_per_worker": (
                    "the coordinator runs the same pipeline on every worker"
                ),
                "input_per_replica": (
                    "the coordinator runs the same pipeline on every worker"
                ),
                "ragged_inputs": (
                    "the coordinator runs the same pipeline on every worker"
                ),
            },
            processes=PARAMETER_SERVERS,
        ),
        BackendInfo(
            name="horovod",
            target="replicator.backends.horovod:HorovodReplicator",
            description="Horovod behind the same contract, where it is installed",
            kind="peer",
            processes=WORKERS,
            lacks={
                "control_flow_check": (
                    "Horovod waits without end where replicas take different paths"
                ),
                "explained_plan": "Horovod plans while it runs",
                "gradient_compression": "float16 only: Horovod reduces no bfloat16",
                "input_single": _OWN_PROGRAMS,
                "model_parallelism": "a process of Horovod has one GPU",
                "random_streams": (
                    "seeds are the program's: the same seed draws the same everywhere"
                ),
                "replica_local_state": (
                    "every process keeps its own copy, and reads its own outside steps"
                ),
                "sharded_update": "every process keeps and updates all variables",
                "vectorized_collectives": (
                    "Horovod's operations have no form for several iterations"
                ),
                "unsynchronized_update_check": (
                    "every process has variables of its own, which may drift apart"
                ),
                "whole_steps": (
                    "a process does not know that another one's data has ended: it "
                    "waits in the step's collective"
                ),
            },
            not_swept_because="start it with horovodrun, which the harness does not do",
        ),
    )
}
