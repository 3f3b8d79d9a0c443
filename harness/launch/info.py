"""What the command line knows of a launcher: its options, and what it can do.

One folder of ``harness/launch/`` is one launcher: ``launcher.py`` has its class, the
rest of the folder is imported when the launcher is used. What it does not do, it says.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from harness.errors import PlanError
from harness.options.option import Option, Options
from results.records import limits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.launch.contract import Launcher
    from harness.launch.job import Job


Nodes = Annotated[
    int | None,
    Field(ge=1, le=limits.MAX_REPLICAS),
    Option(help="Hosts.", default="1 of a sweep; of files, the engine's"),
]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """A job that an engine has accepted."""

    number: str  # Its id.
    follow: str  # How to follow it, in words.
    end: str  # The command that ends it.


class LauncherInfo:
    """One launcher, free of its engine."""

    name: ClassVar[str]  # For ``--launcher``; also that of its folder.
    summary: ClassVar[str]  # One line.
    options: ClassVar[type[Options]] = Options  # Its options for ``sweep``.
    file_options: ClassVar[type[Options]] = Options  # Those for ``launch render``.

    def can(self, does: str) -> bool:
        """Whether it does something, such as ``start`` or ``render``."""
        return getattr(type(self), does) is not getattr(LauncherInfo, does)

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
