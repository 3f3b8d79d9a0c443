"""What a launcher answers: where the processes of one trial run, and what starts them.

On this machine a trial has one first process: its exit is the trial's, its output is
recorded, and its end ends all others. A ``RemoteLauncher``
(``harness/launch/remote.py``) lets an engine start *members* on several hosts, which
report to the harness and end with their connection to it. So time limits, phases, first
causes and clean-up are the harness's own, whichever engine starts a process.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar, Final

from harness.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from harness.launch.gang import RunningGang
    from harness.placement.processes import Processes
    from results.records.models import Placement, TrialSpec

HOSTS_VARIABLE: Final = "REPLICATOR_HARNESS_HOSTS"
"""In the identity of a trial that may use several hosts: how many."""


class Launcher(abc.ABC):
    """How the processes of one trial are started on its hosts; free of TensorFlow."""

    name: ClassVar[str]
    """In the catalogue, and for ``--launcher``."""

    @property
    def num_hosts(self) -> int:
        """Hosts over which the workers of a trial are spread."""
        return 1

    def identity(self) -> dict[str, str]:
        """Variables in the identity of every trial; none on a single host.

        Figures of one host and of several are therefore never of the same case.
        """
        return {} if self.num_hosts == 1 else {HOSTS_VARIABLE: str(self.num_hosts)}

    def check(self, specs: Iterable[TrialSpec]) -> None:
        """Checks that trials can be started, before anything is written.

        Raises:
          PlanError: They were planned for another number of hosts.
        """
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
        """Checks that every host sees a folder, before anything is written.

        Args:
          folder: Where studies are; it may not exist yet.

        Raises:
          PlanError: Records from some hosts would be lost.
        """
        del folder

    def prepare(
        self, trial_dir: Path, processes: Processes, placement: Placement
    ) -> None:
        """Writes what the processes of a trial need beside its records, if anything.

        Args:
          trial_dir: Its directory.
          processes: Its processes.
          placement: Their cores.
        """
        del trial_dir, processes, placement

    @abc.abstractmethod
    def command(
        self, processes: Processes, worker_command: Sequence[str]
    ) -> tuple[str, ...]:
        """Returns what starts a trial, or each member; its directory is appended.

        Args:
          processes: The processes of the trial.
          worker_command: What each of them runs.
        """

    def gang(
        self, trial_dir: Path, variables: Mapping[str, str], command: Sequence[str]
    ) -> RunningGang | None:
        """Plans the members of a trial; None where one process here starts them all.

        Args:
          trial_dir: Its directory.
          variables: The environment variables.
          command: See ``command``.
        """
        del trial_dir, variables, command
        return None

    def end(self, trial_dir: Path) -> None:
        """Ends what a trial left on other hosts; called when none of it runs here.

        Harmless, and without an effect, where there is nothing.

        Raises:
          LaunchError: Something could not be ended within a bounded time.
        """
        del trial_dir
