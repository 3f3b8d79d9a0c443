"""The process of one trial; the only module of the harness that imports TensorFlow.

    python -m harness.trial.worker <trial directory>

Reads ``spec.json`` and the placement in ``env.json``, writes ``rank_<k>.jsonl``. Exit
code 0 when the observations are complete, 1 after a failure that is in the file. In a
trial of several processes (``harness.trial.ranks`` or ``harness.launch.gang`` starts
them), the cluster environment says which one this is; one that is not measured serves
the others. The controls of ``results.records.measuring.Control`` are made here and by
``workloads.build_control``.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import catalog
from harness.client import scaling_client
from harness.machine.allocation import processes_of_trial
from harness.machine.gpus import NO_GPU
from harness.trial import gpu_probe, measure, process_tree
from replicator.cluster import environment
from results.records.models import Control, Environment, Placement, TrialSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.cluster.configuration import ClusterConfig


class DeviceMemory:
    """Probe for the memory that TensorFlow allocates on GPUs: the largest of them."""

    method = "TensorFlow's allocator, largest over GPUs, reset at the window's start"

    def __init__(self, num_gpus: int) -> None:
        self._devices = [f"GPU:{i}" for i in range(num_gpus)]

    def start(self) -> None:
        import tensorflow as tf

        for device in self._devices:
            tf.config.experimental.reset_memory_stats(device)

    def sample(self) -> None:
        """The allocator keeps the peak."""

    def peak_bytes(self) -> int:
        import tensorflow as tf

        get_info = tf.config.experimental.get_memory_info
        return max(int(get_info(device)["peak"]) for device in self._devices)


def main(argv: Sequence[str]) -> int:
    (trial_dir,) = map(Path, argv)
    spec = TrialSpec.model_validate_json((trial_dir / "spec.json").read_bytes())
    env = Environment.model_validate_json((trial_dir / "env.json").read_bytes())
    rank: int | None = 0
    processes = processes_of_trial(spec)
    if processes.are_several:  # what started this one ties and pins it
        cluster = environment.detect().config()
        member = (cluster.kind, cluster.index)
        rank = processes.rank(member)
        _choose_gpus(cluster, processes.replicas_per_worker)
        if processes.is_separate:  # nothing may make it wait for the others
            environment.forget(os.environ)
    else:
        process_tree.request_death_signal()
        process_tree.watch_pipe(sys.stdin.fileno())
        # Before TensorFlow is imported: it sizes its thread pools by the affinity mask.
        os.sched_setaffinity(0, env.placement.cpusets[0])
    if rank is None:
        return _serve(env.placement)
    writer = scaling_client.RankFile(
        scaling_client.rank_path(trial_dir, rank), time.monotonic_ns
    )
    if processes.are_several:
        writer.write("clock", host=scaling_client.clock_host())
    process_tree.beat(lambda: writer.write("heartbeat", ns=time.monotonic_ns()))
    try:
        measure_spec(
            spec,
            env.placement,
            writer,
            scaling_client.Channel.from_environment(rank, processes.num_ranks),
            num_replicas_here=processes.num_replicas_here(spec.num_replicas),
        )
    except Exception as error:  # noqa: BLE001 - recorded, whatever it is
        writer.fail(error)
        return 1
    finally:
        writer.close()
    return 0


def _choose_gpus(cluster: ClusterConfig, num_each: int) -> None:
    """Makes only a worker's own GPUs of this host visible; others compute nothing."""
    ids = os.environ.get("CUDA_VISIBLE_DEVICES", NO_GPU).split(",")
    if ids != [NO_GPU]:
        first = cluster.local_index * num_each
        own = ids[first : first + num_each] if cluster.kind == "worker" else [NO_GPU]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own)


def _serve(placement: Placement) -> int:
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(placement.num_intra_op_threads)
    os.environ["TF_NUM_INTEROP_THREADS"] = str(placement.num_inter_op_threads)
    if given := gpu_probe.given_ids():
        gpu_probe.check(gpu_probe.read_here(), given)
    from replicator import server

    server.main([])
    return 0


def measure_spec(
    spec: TrialSpec,
    placement: Placement,
    writer: scaling_client.RankFile,
    channel: scaling_client.Channel | None = None,
    *,
    num_replicas_here: int = 0,
) -> None:
    """Prepares TensorFlow, then measures; interleaved, when the harness says so."""
    import tensorflow as tf

    threading = tf.config.threading
    threading.set_intra_op_parallelism_threads(placement.num_intra_op_threads)
    threading.set_inter_op_parallelism_threads(placement.num_inter_op_threads)
    given = gpu_probe.given_ids() if spec.device == "gpu" else ()
    if given:
        # Before anything is built: TensorFlow would take the CPU, and say nothing.
        gpu_probe.check(gpu_probe.read_here(), given)
        # Allocating all of a GPU's memory would hide what the trial needs.
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    tf.keras.utils.set_random_seed(spec.seed)

    from replicator._tf.dispatch import count_functions, recorded
    from workloads import build_control

    info = catalog.workload(spec.workload)
    data, options = spec.data, dict(spec.options)
    if spec.control is Control.MATCH:
        assert info.equivalence is not None  # otherwise it is not planned
        data = info.equivalence.data or data
        options |= info.equivalence.options
    info.prepare(data=data)
    counter = measure.StepCounter(recorded, count_functions)

    def build() -> Any:
        counter.replicator = _create(spec)
        note = functools.partial(writer.write, "change")
        return build_control(
            info,
            counter.replicator,
            preset=spec.preset,
            data=data,
            per_replica_batch_size=spec.per_replica_batch_size,
            seed=spec.seed,
            options=options,
            control=spec.control.value,
            record=note if spec.control is Control.MATCH else None,
        )

    def after_first_step() -> None:
        counter.start()
        if given:
            measure.write_tflops(writer, [f"GPU:{i}" for i in range(len(given))])
            if (version := measure.nccl_version()) is not None:
                writer.write("nccl", version=version)

    measure.measure_trial(
        build,
        spec,
        writer,
        example_unit=info.example_unit,
        # A process that coordinates others has no GPU of its own.
        memory=DeviceMemory(len(given)) if given else scaling_client.ResidentMemory(),
        channel=channel,
        count_traces=count_functions,
        measure_peak=functools.partial(
            measure.measure_peak,
            num_replicas=num_replicas_here * spec.devices_per_replica,
            num_gpus=len(given),
        )
        if num_replicas_here
        else None,
        before_warmup=after_first_step,
        run_counted=counter.run if spec.control is Control.NONE else None,
    )


def _create(spec: TrialSpec) -> Any:
    import replicator

    policy = spec.options.get("external_writes")
    takes_policy = policy is not None and catalog.backend(spec.backend).detects_writes
    options: dict[str, Any] = {"external_writes": policy} if takes_policy else {}
    if spec.devices_per_replica > 1 and spec.backend == "dtensor":
        info = catalog.workload(spec.workload)
        options |= info.on_mesh(spec.num_replicas, spec.devices_per_replica)
    elif spec.devices_per_replica > 1:
        options["logical_devices_per_replica"] = spec.devices_per_replica
    if spec.control is Control.INDEPENDENT:  # this process is one of ``num_replicas``
        return replicator.create(spec.backend, num_replicas=1, **options)
    return replicator.create(
        spec.backend,
        num_replicas=spec.num_replicas,
        without_communication=spec.control is Control.NOSYNC,
        **options,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
