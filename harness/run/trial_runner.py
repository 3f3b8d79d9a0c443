"""Runs one trial: places it, starts its processes, and records the outcome.

An interleaved study (``harness/run/rounds.py``) prepares and records its trials with
the same code. Whatever this module imports is part of a trial's code digest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness import SOURCE_ROOT, catalog
from harness.command import peers
from harness.errors import PlanError
from harness.launch.launchers import Launcher, Local, RemoteLauncher
from harness.machine import (
    allocation,
    disturbance,
    environment,
    gpu_watch,
    gpus,
    machine_state,
)
from harness.machine.allocation import Processes, processes_of_trial
from harness.machine.disturbance import CoreClock, Disturbance
from harness.machine.gpu_watch import GpuWatch
from harness.machine.machine_state import CpuTopology, now_text, read_topology
from harness.run import aggregate, trial_tree
from harness.run.aggregate import Conclusion
from harness.run.trial_tree import ProcessTree, TrialExit
from harness.trial import rank_file
from results.records import measuring
from results.records.models import Measuring, Phase, StatusRecord, TrialStatus
from results.store import manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.machine.gpus import Gpu
    from harness.sources.code_digest import SourceTree
    from results.records.measuring import GpuUses
    from results.records.models import (
        Block,
        Environment,
        Placement,
        PlannedTrial,
        TrialSpec,
    )
    from results.store.study_store import Store

    Load = Callable[[CoreClock, CoreClock], Disturbance]
    DiscardReason = Callable[[Disturbance, int], str]
    GpuUsesWithin = Callable[[int | None, int | None], GpuUses]


COMMAND_WORKER = (sys.executable, "-m", "harness.command.worker")
"""What starts a program of the user's; its folder and the trial's are appended."""
CHANGED_CODE = "ChangedCodeError"
"""The cause of trials that ran while their code was edited."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    timeout_sec: float  # Time limit of one trial.
    # The CPUs to use; by default those that this process may use.
    topology: CpuTopology = dataclasses.field(default_factory=read_topology)
    is_failed_retried: bool = False  # Whether recorded failures are run again.
    # The process of a trial; its directory is appended.
    worker_command: Sequence[str] = trial_tree.WORKER_COMMAND
    # Returns the seconds of the fixed computation on a core.
    canary: Callable[[int | None], float] = disturbance.run_canary
    data_dir: str | None = None  # Directory of TFDS data sets; by default that of TFDS.
    # How long an interleaved study measures.
    measuring: Measuring = dataclasses.field(default_factory=Measuring)
    # What others did to a block, by readings of its cores before and after it.
    load: Load = CoreClock.load_until
    # Shortest block: in less, the kernel's ticks of 10 ms say too little about others.
    min_block_sec: float = 0.3
    min_stretch_sec: float = 2.0  # Shortest sustained stretch of a gate.
    # How often it is read what a trial that runs alone does: a look takes some 50 us.
    look_sec: float = 2.0
    # Says why a block does not count, or "" if it does.
    discard_reason: DiscardReason = Disturbance.discard_reason
    # Sources of other revisions, by the name that specs have.
    trees: Mapping[str, SourceTree] = dataclasses.field(default_factory=dict)
    # Time of the other processes of a trial, after one has closed its connection.
    grace_sec: float = 30.0
    # Returns how many processes the kernel has ended for want of memory, or None.
    count_oom_kills: Callable[[], int | None] = machine_state.read_oom_kills
    # How long a file of another host can be missing: NFS knows a folder for up to 60 s.
    late_sec: float = 70.0
    # Starts the processes of a trial.
    launcher: Launcher = dataclasses.field(default_factory=Local)
    # Where programs of the user's start, by revision; by default here.
    folders: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    # What the trials of peers begin with: a folder, by trial.
    exports: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    # Says how the code differs from that of the study, or "".
    changed_code: Callable[[], str] = lambda: ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A trial that can be started, and what becomes of it."""

    store: Store
    settings: RunSettings
    trial: PlannedTrial
    trial_dir: Path
    processes: Processes
    command: tuple[str, ...]  # What starts them; the directory is appended.
    variables: dict[str, str]  # Their environment variables.
    env: Environment  # The environment record so far.
    started_at: str  # Time of day.
    start_sec: float  # The same, on the monotonic clock.
    gpus: tuple[Gpu, ...] = ()
    is_client: bool = False  # Whether it is a program that connects by the client.

    def tree(self) -> ProcessTree:
        launcher, gang = self.settings.launcher, None
        planned = (self.trial_dir.resolve(), self.variables, self.command)
        if isinstance(launcher, RemoteLauncher):
            cpusets = self.env.placement.cpusets
            gang = launcher.gang(*planned, self.processes, cpusets)
        return ProcessTree(*planned, launcher.end, gang, self.settings.count_oom_kills)

    def record(
        self,
        trial_exit: TrialExit,
        *,
        disturbance: Mapping[str, float | None],
        blocks: Sequence[Block] = (),
        duration_sec: float | None = None,
        gpu_uses: GpuUsesWithin | None = None,
        changed_code: str = "",
    ) -> StatusRecord:
        """Records the outcome of a trial: environment, result, and status last."""
        settings, env = self.settings, self.env
        after: dict[str, object] = {
            **disturbance,
            "load_average_after": os.getloadavg()[0],
            "canary_after_sec": settings.canary(env.placement.cpusets[0][0]),
        }
        names = manifest.names_in(self.trial_dir)
        left = [rank_file.put_aside(self.trial_dir / name) for name in names]
        self.store.write_spec(self.trial.trial_id, self.trial.spec)  # as it was
        conclusion = aggregate.conclude(
            self.trial.trial_id,
            self.trial.spec,
            self.trial_dir,
            trial_exit,
            num_ranks=self.processes.num_ranks,
            blocks=blocks,
            late_sec=settings.late_sec if settings.launcher.num_hosts > 1 else 0.0,
        )
        if reason := next(filter(None, left), ""):
            kind = rank_file.RankFileError.__name__
            conclusion = Conclusion().but(Phase.REPORT, reason, exception_type=kind)
        elif changed_code and conclusion.status is TrialStatus.OK:
            conclusion = Conclusion().but(
                Phase.REPORT,
                f"the code changed while it ran, so what was measured is unknown:"
                f" {changed_code}",
                exception_type=CHANGED_CODE,
            )
        if gpu_uses is not None and self.gpus:
            uses = gpu_uses(*aggregate.window_ns(conclusion))
            uses = measuring.with_products(uses, conclusion.gpu_tflops)
            reason = measuring.discard_reason(uses)
            if reason and conclusion.status is TrialStatus.OK:
                conclusion = conclusion.but(
                    Phase.MEASURE,
                    f"{reason} while it was measured; run 'python -m harness doctor"
                    " --device gpu', then repeat the sweep with --retry failed",
                    status=TrialStatus.DISCARDED,
                )
            after["gpu_uses"] = uses
            after["nccl_version"] = conclusion.nccl_version
        self.store.write_env(self.trial.trial_id, env.model_copy(update=after))
        if conclusion.status is TrialStatus.OK:  # that of a failed run explains it
            rank_file.remove_checkpoints(self.trial_dir)
        if conclusion.result is not None:
            self.store.write_result(self.trial.trial_id, conclusion.result)
        else:  # of the program
            (self.trial_dir / "result.json").unlink(missing_ok=True)
        return self.write_status(conclusion, duration_sec, trial_exit.exit_code)

    def write_status(
        self,
        conclusion: Conclusion,
        duration_sec: float | None = None,
        exit_code: int | None = None,
    ) -> StatusRecord:
        if duration_sec is None:
            duration_sec = time.monotonic() - self.start_sec
        status = StatusRecord(
            trial_id=self.trial.trial_id,
            status=conclusion.status,
            started_at=self.started_at,
            ended_at=now_text(),
            duration_sec=duration_sec,
            exit_code=exit_code,
            failure=conclusion.failure,
        )
        self.store.write_status(status.trial_id, status)
        return status


def place(
    spec: TrialSpec, topology: CpuTopology, num_hosts: int = 1
) -> tuple[Processes, tuple[Gpu, ...], Placement]:
    """Returns the processes of a trial, its GPUs on the first host, and all cores."""
    processes = processes_of_trial(spec)
    chosen: tuple[Gpu, ...] = ()
    if spec.device == "gpu":
        num_here = allocation.num_replicas_on_first(
            processes, spec.num_replicas, num_hosts
        )
        chosen = gpus.choose(gpus.visible_gpus(), num_here)
    nodes = [gpu.node for gpu in chosen]
    placement = allocation.place_trial(
        topology, spec, processes, num_hosts=num_hosts, gpu_nodes=nodes
    )
    return processes, chosen, placement


def prepare(store: Store, trial: PlannedTrial, settings: RunSettings) -> Prepared:
    """Clears the directory of a trial, places it, and writes spec and environment."""
    spec, trial_id = trial.spec, trial.trial_id
    trial_dir = store.trial_dir(trial_id)
    trial_tree.clear_trials(trial_dir, store.list_earlier)
    started_at, start_sec = now_text(), time.monotonic()
    store.write_spec(trial_id, spec)
    launcher = settings.launcher
    processes, chosen, placement = place(spec, settings.topology, launcher.num_hosts)
    versions: Mapping[str, str] | None = None
    command = launcher.command(processes, settings.worker_command)
    source_root = code_root = SOURCE_ROOT
    of_peer = catalog.PEERS.get(spec.backend)
    if spec.program is not None:
        if of_peer is None:
            code_root = settings.folders.get(spec.revision, Path.cwd())
        command, versions = (*COMMAND_WORKER, str(code_root)), {}
    elif spec.revision:
        tree = settings.trees[spec.revision]
        command = tuple(tree.python if w == sys.executable else w for w in command)
        source_root = code_root = tree.root
        versions = tree.versions
    variables = trial_tree.trial_variables(
        spec,
        placement,
        trial_dir,
        gpu_ids=[gpu.cuda_id for gpu in chosen],
        data_dir=settings.data_dir,
        source_root=source_root,
    )
    if of_peer is not None:
        variables = peers.variables(source_root, variables, settings.exports[trial_id])
    is_ours = spec.program is None or of_peer is not None
    marker = machine_state.OWN_FILE if is_ours else "."
    env = environment.read_environment(
        placement,
        variables,
        chosen=chosen,
        state=machine_state.read_machine_state(
            [*itertools.chain(*placement.cpusets)], source_root=code_root, marker=marker
        ),
        versions=versions,
    )
    if spec.is_client:
        trial_tree.write_client(trial_dir, spec)
    canary_sec = settings.canary(placement.cpusets[0][0])
    after: dict[str, object] = {"canary_before_sec": canary_sec}
    if of_peer is not None:
        after["packages"] = peers.packages(source_root, of_peer)
    env = env.model_copy(update=after)
    store.write_env(trial_id, env)
    return Prepared(
        store=store,
        settings=settings,
        trial=trial,
        trial_dir=trial_dir,
        processes=processes,
        command=command,
        variables=variables,
        env=env,
        started_at=started_at,
        start_sec=start_sec,
        gpus=chosen,
        is_client=spec.is_client,
    )


def run_trial(store: Store, trial: PlannedTrial, settings: RunSettings) -> StatusRecord:
    prepared = prepare(store, trial, settings)
    if others := gpu_watch.wait_until_free(prepared.gpus):
        # It is not started: its figures would not count.
        reason = (
            f"{others} before it was started; end the others, or reset the GPU"
            " ('nvidia-smi' says which), then repeat the sweep with --retry failed"
        )
        ended = Conclusion().but(Phase.LAUNCH, reason, status=TrialStatus.DISCARDED)
        return prepared.write_status(ended)
    clock = disturbance.read_clock()
    limit_sec = settings.timeout_sec
    with GpuWatch(prepared.gpus) as watch, prepared.tree() as tree:
        trial_exit = tree.finish(limit_sec, limit_sec=limit_sec)
    load = disturbance.foreign_since(clock, prepared.env.num_logical_cores)
    return prepared.record(
        trial_exit,
        disturbance=load,
        gpu_uses=watch.uses,
        changed_code=changed_code(settings),
    )


def changed_code(settings: RunSettings) -> str:
    """Returns how the code differs from that of the study, or "" as far as is known."""
    with contextlib.suppress(PlanError):  # the next trial asks again
        return settings.changed_code()
    return ""
