"""The launchers by name, and the one of this machine.

Each other one is one file, and nothing of its engine is imported.

A plugin adds one by an entry point of ``replicator_harness.launchers``; its options are
known once it was named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

from harness.launch.launcher import Launcher
from harness.lookup import find

if TYPE_CHECKING:
    from harness.options.option import Options

DEFAULT: Final = "local"
LAUNCHERS: Final = (
    "local",
    "slurm",
    "ray",
    "jobset",
    "kubernetes",
)
"""Names of files, each of which has a ``LAUNCHER``; but for the first."""


class Local(Launcher):
    """Processes of this machine."""

    name = DEFAULT
    summary = "processes of this machine"

    def start(self, options: Options) -> Launcher:
        del options
        return self


_FOUND: Final[dict[str, Launcher | None]] = {
    **dict.fromkeys(LAUNCHERS),
    DEFAULT: Local(),
}
"""With those of plugins that were named; None for one that is not imported yet."""


def info(name: str) -> Launcher:
    found = find("launchers", _FOUND, name, complain)
    if found is not None:
        return found
    module = importlib.import_module(f"harness.launch.{name}")
    return cast("Launcher", module.LAUNCHER)


def complain(found: object) -> str:
    from results.plugins import complaint_of

    return complaint_of(Launcher)(found)


def options() -> dict[str, type[Options]]:
    """Returns the model of each launcher's options for ``sweep``."""
    return {name: info(name).options for name in _FOUND}


def file_options() -> dict[str, type[Options]]:
    """Returns the model of each launcher's options for ``launch render``."""
    return {name: info(name).file_options for name in _FOUND}


def start(name: str) -> Launcher:
    own = info(name)
    return by_hosts(own.start(own.options()))


def by_hosts(launcher: Launcher) -> Launcher:
    """Returns a launcher; that of this machine where there is one host.

    Processes are then started as anywhere else, so that the cases of a relay can take
    turns.
    """
    return launcher if launcher.num_hosts > 1 else Local()
