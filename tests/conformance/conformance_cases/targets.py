"""What the suite runs on: every backend, in its variants, at several replica counts.

One cluster of processes runs all cases of a target, one after the other. It ends with
the first that fails, after which its processes may disagree; those behind it say which
one that was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import case_cluster
import graphs
import tensorflow as tf
from conformance_cases import (  # noqa: F401 - imported for their cases
    cases,
    collectives,
    inputs,
    misuse,
    state,
    training,
)
from conformance_cases.cases import Topology

import replicator
from replicator._tf import compat as _tf_compat
from replicator.catalog import BACKENDS, PARAMETER_SERVERS, SERVED_WORKERS
from replicator.core import devices

NUM_VIRTUAL_DEVICES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A backend with options, at a number of replicas."""

    backend: str  # Its name in the catalogue.
    num_replicas: int  # Of the whole job.
    variant: str = ""  # What the options are about; empty for the defaults.
    num_workers: int = 1  # Processes that hold replicas.
    # Keyword arguments of the backend, or functions of the numbers of replicas and of
    # logical devices that give them.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Capability -> why this target cannot show it on a machine like this.
    not_here: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Cases whose values are of one replica, where a step sees those of all.
    skips: tuple[str, ...] = ()
    # Puts stand-ins in place of what this machine has not; a context manager.
    patch: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    @property
    def name(self):
        parts = [self.backend, self.variant, str(self.num_replicas)]
        return "-".join(part for part in parts if part)

    @property
    def topology(self):
        return Topology(self.num_replicas, self.num_workers)

    @property
    def num_devices_per_worker(self):
        return 2 * self.topology.num_local_replicas

    @property
    def is_cluster(self):
        return self.num_workers > 1

    def make(self, case):
        return self.make_for(case.num_logical_devices)

    def make_for(self, count):
        options = {
            name: value(self.num_replicas, count) if callable(value) else value
            for name, value in self.options.items()
        }
        if count > 1:
            options["logical_devices_per_replica"] = count
        with self.patch():
            return replicator.create(
                self.backend, num_replicas=self.num_replicas, **options
            )

    def why_not(self, case):
        """The reason why the backend skips a case, or None."""
        lacks = BACKENDS[self.backend].lacks
        for capability in sorted(case.needs):
            if capability in lacks:
                return f"{self.backend} lacks {capability}: {lacks[capability]}"
            if capability in self.not_here:
                return f"not run here: {self.not_here[capability]}"
        return None

    def is_meant(self, case):
        """Whether the case says something at this number of replicas."""
        is_possible = case.min_replicas <= self.num_replicas <= case.max_replicas
        return is_possible and case.name not in self.skips

    def runs(self, case):
        return self.is_meant(case) and self.why_not(case) is None


def tpu_on_cpus():
    """A TPU is found, whose two cores are virtual CPU devices."""

    def make_strategy():
        # On CPUs, TensorFlow keeps int32 apart and MirroredStrategy sums int64 only.
        replicator.TpuReplicator.replica_context_class.wire_integer = tf.int64
        # It has the interface of TPUStrategy that steps see.
        return _tf_compat.mirrored_strategy(["/device:CPU:0", "/device:CPU:1"])

    return graphs.tpu(make_strategy, mesh_shape=(1, 1, 1, 2))


def _cpus(num_replicas, num_logical_devices):
    """Virtual devices in turn; a replica that is split gets different ones."""
    names = [f"CPU:{index}" for index in range(NUM_VIRTUAL_DEVICES)]
    if num_logical_devices == 1:
        return names[:num_replicas]
    return [
        [names[(r + i) % NUM_VIRTUAL_DEVICES] for i in range(num_logical_devices)]
        for r in range(num_replicas)
    ]


def _split_only(num_replicas, num_logical_devices):
    """Names devices only where replicas are split; else the backend chooses."""
    if num_logical_devices == 1:
        return None
    return _cpus(num_replicas, num_logical_devices)


def _in_process(backend, counts, variant="", **options):
    return [
        Target(backend=backend, num_replicas=count, variant=variant, options=options)
        for count in counts
    ]


IN_PROCESS = [
    *_in_process("single", (1,), devices=_split_only),
    *_in_process("in_graph", (1, 2, 4), devices=_split_only),
    *_in_process("in_graph", (2,), "devices", devices=_cpus),
    *_in_process(
        "in_graph", (2, 4), "mirrored", devices=_cpus, variable_placement="mirrored"
    ),
    # Its layouts have tests of their own, on this machine's devices.
    Target(
        backend="dtensor",
        num_replicas=2,
        skips=(
            "global_clipping_comes_after_reduction",
            "rows_that_replicas_share",
            "weights_set_outside_reach_every_replica",
        ),
    ),
    # More would test MirroredStrategy, and not how it is used.
    *_in_process("tf_mirrored", (2,), devices=_cpus),
    Target(
        backend="tpu",
        num_replicas=2,
        variant="stand_in",
        options={"tpu": "stand-in"},
        patch=tpu_on_cpus,
        not_here={
            "model_parallelism": "MirroredStrategy stands in, which splits nothing",
            "whole_steps": "MirroredStrategy stands in, which compiles nothing",
        },
    ),
]
# A worker that does not come fails its case, and not the run.
_BOUNDED = {"timeout_sec": 60.0}
CLUSTERS = [
    Target(backend="multi_worker", num_replicas=2, num_workers=2, options=_BOUNDED),
    Target(backend="multi_worker", num_replicas=4, num_workers=2, options=_BOUNDED),
    # Two replicas per worker take two minutes more; the backend's own tests have them.
    Target(backend="multi_worker_in_graph", num_replicas=2, num_workers=2),
    Target(backend="tf_multi_worker", num_replicas=2, num_workers=2, options=_BOUNDED),
    Target(backend="async", num_replicas=2, num_workers=2),
    Target(backend="tf_parameter_server", num_replicas=2, num_workers=2),
]
TARGETS = {target.name: target for target in (*IN_PROCESS, *CLUSTERS)}


# Backends of several processes -> the one whose class they inherit from: each process
# does what that one does in a single process.
HEIRS = {
    "multi_worker_in_graph": "in_graph",
    "multi_worker": "in_graph",
    "tf_multi_worker": "tf_mirrored",
}
# What an heir does by code of its own.
BETWEEN_WORKERS = ("nests_of_mixed_ranks", "results_of_their_own", "reads_per_replica")
# Backends that call a strategy in the same way.
ALIKE = ("tf_mirrored", "tpu")
# Targets of which the full run alone asks something: another one of their backend does
# more.
REST = ("in_graph-1", "multi_worker-2")


def covering_targets(cases):
    """The targets that each case runs on in ``make test``; the full run has them all.

    One target of each backend, in turn from case to case. Two backends that call a
    strategy in the same way share the cases, and an heir has few: as many as name each
    of its capabilities, because the backend that it inherits from has all of them, and
    those of what it does between workers.
    """
    found = {case.name: set() for case in cases}
    for backend in BACKENDS:
        own = [
            target
            for target in TARGETS.values()
            if target.backend == backend and target.name not in REST
        ]
        possible = [case for case in cases if any(t.runs(case) for t in own)]
        few = [case.name for case in _fewest(possible)]
        if backend in ALIKE:
            few += [case.name for case in possible[ALIKE.index(backend) :: len(ALIKE)]]
        elif backend in HEIRS:
            few += BETWEEN_WORKERS
        else:
            few = list(found)
        chosen = [case for case in possible if case.name in few]
        for turn, case in enumerate(chosen):
            fitting = [target.name for target in own if target.runs(case)]
            found[case.name].add(fitting[turn % len(fitting)])
    return found


def _fewest(cases):
    """Cases that name every capability that all of them name; trainings at last."""
    left = set().union(*(case.needs for case in cases))
    kept = []
    while left:
        best = max(
            cases,
            key=lambda c: (
                bool(c.needs & left),
                not c.like_single_device,
                len(c.needs & left),
            ),
        )
        kept.append(best)
        left -= best.needs
    return kept


# Backend -> what no target of it can show on a machine like this one.
NOT_RUN = {
    "tpu": (
        "without a TPU: `MirroredStrategy` on virtual CPU devices replaces "
        "`TPUStrategy`, with all code but the start of the TPU system and the "
        "placement on its cores"
    ),
}

# Clusters, and what each of their processes looks up, on replicators made once.
FOLDER = Path(__file__).resolve().parents[1]
START_TIMEOUT_SEC = 120.0
TIMEOUT_PER_CASE_SEC = 20.0
CASE_TIMEOUT_SEC = 90.0


def program_members(target):
    """Kind and index of the processes that run the user's program; others serve."""
    return {
        SERVED_WORKERS: [("worker", 0)],
        PARAMETER_SERVERS: [("chief", 0)],
    }.get(
        BACKENDS[target.backend].processes,
        [("worker", index) for index in range(target.num_workers)],
    )


def run(target, case_names, folder):
    members = program_members(target)
    has_chief = ("chief", 0) in members
    with case_cluster.started(
        "conformance_cases.targets",
        folder,
        path=FOLDER,
        cases=case_names,
        options={"target_name": target.name},
        runners=members,
        num_cpu_devices=target.num_devices_per_worker,
        case_timeout_sec=CASE_TIMEOUT_SEC,
        num_workers=target.num_workers,
        num_ps=int(has_chief),
        has_chief=has_chief,
    ) as running:
        running.ends_well(START_TIMEOUT_SEC + TIMEOUT_PER_CASE_SEC * len(case_names))
        output, results = running.last_output(), running.results
    found = {}
    last = "its start"
    for name in case_names:
        if results.has_all(name):
            found[name] = cases.join([_outcome(r) for r in results.read_all(name)])
            last = name
        else:
            message = f"no result of {name}: the cluster ended after {last}"
            found[name] = cases.Outcome(
                error_kinds=("ClusterEnded",), message=message, trace=output
            )
    return found


def _outcome(result):
    """What came of a case in one process, if it could be written."""
    if not result.error:
        return result.value
    return cases.Outcome(
        error_kinds=("Unwritten",), message=result.error, trace=result.trace
    )


def set_up(_folder, *, target_name):
    """What makes replicators; the first joins the cluster, before any variable."""
    target = TARGETS[target_name]
    devices.split_cpu(target.num_devices_per_worker)
    make = functools.cache(target.make_for)
    make(1)
    cases.CASE_TIMEOUT_SEC = CASE_TIMEOUT_SEC
    return (make,)


def _case(case):
    return lambda make: cases.evaluate(case, lambda c: make(c.num_logical_devices))


CASES = {name: _case(case) for name, case in cases.CASES.items()}


def can_continue(outcomes, _make):
    """Whether no case has parted the processes; None is an outcome that was lost."""
    return all(outcome is not None and not outcome.error_kinds for outcome in outcomes)
