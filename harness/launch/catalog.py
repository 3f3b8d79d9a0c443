"""The launchers by name; each is one folder, and nothing of its engine is imported."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

from harness.lookup import look_up

if TYPE_CHECKING:
    from harness.launch.contract import Launcher
    from harness.launch.info import LauncherInfo
    from harness.options.option import Options

DEFAULT: Final = "local"
LAUNCHERS: Final = (
    "local",
    "slurm",
    "ray",
    "mpi",
    "jobset",
    "kubernetes",
)
"""Names of folders; ``launcher.py`` in each has ``LAUNCHER``."""


def info(name: str) -> LauncherInfo:
    """Returns a launcher by name.

    Raises:
      PlanError: The name is unknown; the message lists the known ones.
    """
    look_up(dict.fromkeys(LAUNCHERS), name, what="launcher")
    module = importlib.import_module(f"harness.launch.{name}.launcher")
    return cast("LauncherInfo", module.LAUNCHER)


def options() -> dict[str, type[Options]]:
    """Returns the model of each launcher's options for ``sweep`` and ``plan``."""
    return {name: info(name).options for name in LAUNCHERS}


def file_options() -> dict[str, type[Options]]:
    """Returns the model of each launcher's options for ``launch render``."""
    return {name: info(name).file_options for name in LAUNCHERS}


def start(name: str) -> Launcher:
    """Returns what starts trials on the hosts that are here.

    Raises:
      HarnessError: The name is unknown, or its engine is not here.
    """
    own = info(name)
    return by_hosts(own.start(own.options()))


def by_hosts(launcher: Launcher) -> Launcher:
    """Returns a launcher; that of this machine where there is one host.

    Processes are then started as anywhere else, so that the cases of a relay can take
    turns.
    """
    here = info(DEFAULT)
    return launcher if launcher.num_hosts > 1 else here.start(here.options())
