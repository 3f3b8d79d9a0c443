"""What the command line knows of the launcher ``local``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.launch.info import LauncherInfo

if TYPE_CHECKING:
    from harness.launch.contract import Launcher
    from harness.options.option import Options


class Local(LauncherInfo):
    """Processes of this machine."""

    name = "local"
    summary = "processes of this machine"

    def start(self, options: Options) -> Launcher:
        """Returns what starts trials on this machine."""
        del options
        from harness.launch.local import LocalLauncher

        return LocalLauncher()


LAUNCHER = Local()
