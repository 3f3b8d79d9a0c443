"""Launchers: what the command line asks of one, and how it starts the trials.

One file of ``harness/launch/`` is one launcher, and is imported where it is named: its
``LAUNCHER`` is what the command line knows of it. A plugin adds one by an entry point
of ``replicator_harness.launchers``. On this machine a trial has one first process. A
``RemoteLauncher`` lets an engine start *members* on several hosts, which report to the
harness and end with their connection to it. So time limits, phases, first causes and
clean-up are the harness's own, whichever engine starts a process.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, cast

import psutil
from pydantic import Field

from harness.catalog import find
from harness.errors import LaunchError, PlanError
from harness.launch.gang import Gang, RunningGang
from harness.machine import environment
from harness.machine.allocation import Processes, members_per_host
from harness.options import kinds
from harness.options.option import Option, Options, option
from harness.trial import rank_file
from replicator.cluster.environment import ROLES, roles_text
from results.records.record_base import MAX_REPLICAS, Replicas

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.launch.gang import Engine
    from results.records.models import TrialSpec

DEFAULT: Final = "local"
LAUNCHERS: Final = ("local", "slurm", "ray", "jobset", "kubernetes")
"""Names of files, each of which has a ``LAUNCHER``; but for the first."""
HOSTS_VARIABLE: Final = "REPLICATOR_HARNESS_HOSTS"
"""In the identity of a trial that may use several hosts: how many."""
CLUSTER_COMMAND: Final = (sys.executable, "-m", "harness.trial.ranks")
"""Starts the processes of a cluster; the worker command and directory are appended."""
MEMBER_COMMAND: Final = (sys.executable, "-m", "harness.launch.gang")
"""The worker command and the directory are appended."""
GANG: Final = "Workers"
FILES: Final = "Files"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?")
_CHECK_SEC = 60.0
_ANSWER_SEC = 30.0
Nodes = Annotated[
    int | None,
    Field(ge=1, le=MAX_REPLICAS),
    Option(help="Hosts.", default="1 of a sweep; of files, the engine's"),
]


class Job(Options):
    """What an engine is asked to run, whichever it is."""

    command: tuple[str, ...] = option(
        (), is_argument=True, kind=kinds.TEXTS, metavar="-- COMMAND..."
    )
    workers: Replicas = option(1, "Processes of the gang.", GANG)
    gpus_per_worker: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = option(
        0, "GPUs of each worker."
    )
    cores_per_worker: Replicas | None = option(
        None, "Cores of each worker.", shown="the engine's", is_setting=True
    )
    replicas: Replicas | None = option(
        None, "Checks that workers times GPUs make so many.", is_setting=True
    )
    directory: str = option(
        ".", "Current folder of the workers; all hosts must see it."
    )
    name: str = option("replicator", "Of the job, and of its files.", FILES)

    def check(self) -> None:
        if not self.command:
            raise PlanError(
                "no command to run; write it after '--', for example -- python train.py"
            )
        if _NAME.fullmatch(self.name) is None:
            raise PlanError(
                f"job name {self.name!r} is not valid; allowed are up to 53 lower-case"
                " letters, digits and hyphens, starting and ending with a letter or"
                " digit"
            )
        made = self.workers * max(self.gpus_per_worker, 1)
        if self.replicas is not None and made != self.replicas:
            raise PlanError(
                f"--workers {self.workers} x --gpus-per-worker {self.gpus_per_worker}"
                f" makes {made} replicas, not replicas={self.replicas}; choose"
                f" numbers whose product is {self.replicas} (0 GPUs per worker count as"
                " one replica on CPUs)"
            )

    def check_nodes(self, nodes: int) -> None:
        if nodes > self.workers:
            raise PlanError(
                f"--set nodes={nodes} is more than --workers {self.workers}: a node"
                f" would have no worker; use at most nodes={self.workers}"
            )

    def workers_per_node(self, nodes: int) -> int:
        """Returns how many workers a host gets, where all get as many."""
        self.check_nodes(nodes)
        if self.workers % nodes:
            raise PlanError(
                f"--workers {self.workers} is not divisible by nodes={nodes}; use a"
                " multiple, so that every host has as many workers"
            )
        return self.workers // nodes


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """A job that an engine has accepted."""

    number: str
    follow: str  # How to follow it, in words.
    end: str  # The command that ends it.


class Launcher:
    """Starts each process of a trial here, unless a subclass says otherwise."""

    name: ClassVar[str]  # For ``--launcher``; also that of its file.
    summary: ClassVar[str]  # One line.
    options: ClassVar[type[Options]] = Options  # Its options for ``sweep``.
    file_options: ClassVar[type[Options]] = Options  # Those for ``launch render``.
    num_hosts = 1
    """Hosts over which the workers of a trial are spread."""

    def can(self, does: str) -> bool:
        """Whether it does something, such as ``start`` or ``render``."""
        return getattr(type(self), does) is not getattr(Launcher, does)

    def is_submitted(self) -> bool:
        """Whether a sweep becomes a job here, rather than to run in this process."""
        return False

    def start(self, options: Any) -> Launcher:
        """Returns what starts trials on the hosts that are here."""
        del options
        raise PlanError(
            f"--launcher {self.name} starts no trials, it only writes files: use"
            f" 'launch render --launcher {self.name}', or leave --launcher out"
        )

    def plan(self, options: Any) -> Launcher:
        """Returns what will start trials in a job; where ``is_submitted``."""
        raise NotImplementedError

    def submit(self, job: Job, options: Any, runs_dir: Path) -> Submitted:
        """Submits a sweep, which continues after the time limit; ``is_submitted``."""
        raise NotImplementedError

    def render(self, job: Job, options: Any) -> Mapping[str, str]:
        """Returns files that start a gang by hand: names and contents."""
        del job, options
        raise PlanError(
            f"--launcher {self.name} writes no files: its trials are started by"
            f" 'sweep --launcher {self.name}'; choose another --launcher"
        )

    def identity(self) -> dict[str, str]:
        """Variables in the identity of every trial; none on a single host."""
        return {} if self.num_hosts == 1 else {HOSTS_VARIABLE: str(self.num_hosts)}

    def check(self, specs: Iterable[TrialSpec]) -> None:
        """Checks that trials were planned for so many hosts."""
        for spec in specs:
            planned = int(spec.variables.get(HOSTS_VARIABLE, 1))
            if planned != self.num_hosts:
                raise PlanError(
                    f"--launcher {self.name}: the trials are planned for {planned}"
                    f" host{'s' if planned > 1 else ''}, but {self.num_hosts} are here;"
                    f" run the command in an allocation of {planned}, or choose a new"
                    " --study"
                )

    def check_folder(self, folder: Path) -> None:
        """Checks that every host sees where studies are, before anything is written."""

    def command(
        self, processes: Processes, worker_command: Sequence[str]
    ) -> tuple[str, ...]:
        """Returns what starts a trial, or each member; its directory is appended."""
        several = CLUSTER_COMMAND if processes.are_several else ()
        return (*several, *worker_command)

    def end(self, trial_dir: Path) -> None:
        """Ends what a trial left on other hosts, within a bounded time; or raises.

        Called when none of it runs here; harmless where there is nothing.
        """


class Local(Launcher):
    name = DEFAULT
    summary = "processes of this machine"

    def start(self, options: Options) -> Launcher:
        del options
        return self


class RemoteLauncher(Launcher):
    """A launcher whose engine starts the members of a gang on several hosts."""

    def engine(self, gang: Gang) -> Engine:
        """Starts the members, maybe later; the engine may refuse (``LaunchError``)."""
        raise NotImplementedError

    def check_folder(self, folder: Path) -> None:
        """Starts a member on every host, which only looks for a folder in it."""
        existing = next(path for path in (folder, *folder.parents) if path.is_dir())
        members = tuple(("worker", index) for index in range(self.num_hosts))
        processes = Processes(members=members, num_ranks=len(members))
        with tempfile.TemporaryDirectory(dir=existing, prefix=".tmp-seen-") as name:
            trial_dir = Path(name)
            # Members make folders in that for temporary files, and leave them to us.
            variables = environment.own_variables(os.environ, TMPDIR=name)
            command = (*MEMBER_COMMAND, "true")
            gang = self.gang(trial_dir, variables, command, processes)
            reason = f"its hosts have not answered within {_CHECK_SEC:g} s"
            gang.start()
            try:
                gang.wait(_CHECK_SEC)
            except psutil.TimeoutExpired:
                pass
            finally:
                gang.end()
                self.end(trial_dir)
            if gang.exit_code:
                said = " ".join("".join(gang.output).split())[-300:]
                reason = rank_file.read_first_exit(trial_dir).reason or said
            if gang.exit_code != 0:
                asked = f"--launcher {self.name}, --runs-dir {str(folder)!r}"
                raise PlanError(f"{asked}: {reason}")

    def command(
        self, processes: Processes, worker_command: Sequence[str]
    ) -> tuple[str, ...]:
        del processes
        return (*MEMBER_COMMAND, *worker_command)

    def gang(
        self,
        trial_dir: Path,
        variables: Mapping[str, str],
        command: Sequence[str],
        processes: Processes,
        cpusets: Sequence[Sequence[int]] | None = None,
    ) -> RunningGang:
        """Plans the members of a trial; one worker where it has no cluster."""
        members = processes.members or (("worker", 0),)
        gang = Gang(
            trial_dir=trial_dir,
            members=members,
            members_per_host=members_per_host(len(members), self.num_hosts),
            cpusets=cpusets or ((),) * len(members),
            num_ranks=processes.num_ranks,
            command=(*command, str(trial_dir)),
            variables={**variables, ROLES: roles_text(members)},
        )
        return RunningGang(self.engine, gang)


def ask(
    command: Sequence[str],
    text: str = "",
    *,
    check: str,
    answer_sec: float = _ANSWER_SEC,
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program of an engine to its end; ``check`` shows whether it answers."""
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=answer_sec,
            check=False,
            env=environ,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"{command[0]} does not answer ({error}); check '{check}', then run the"
            " same command again"
        ) from error


_FOUND: dict[str, Launcher | None] = {**dict.fromkeys(LAUNCHERS), DEFAULT: Local()}
"""With those of plugins that were named; None for one that is not imported yet."""


def info(name: str) -> Launcher:
    launcher = find("launchers", _FOUND, name, Launcher)
    if launcher is not None:
        return launcher
    module = importlib.import_module(f"harness.launch.{name}")
    return cast("Launcher", module.LAUNCHER)


def options() -> dict[str, type[Options]]:
    return {name: info(name).options for name in _FOUND}


def file_options() -> dict[str, type[Options]]:
    return {name: info(name).file_options for name in _FOUND}


def start(name: str) -> Launcher:
    own = info(name)
    return by_hosts(own.start(own.options()))


def by_hosts(launcher: Launcher) -> Launcher:
    """Returns a launcher; with one host this machine's, whose cases can take turns."""
    return launcher if launcher.num_hosts > 1 else Local()
