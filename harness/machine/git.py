"""Git as the harness runs it: in one repository, without hooks, locks and questions."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from harness.machine.owned_folders import Owned


def run(
    folder: Path,
    *arguments: str,
    text: str = "",
    timeout_sec: float | None = None,
    holds: Owned | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command of git in a folder, whatever its exit code."""
    # Variables of a hook or an outer command would name another repository.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    # Without locks, which an interrupt would leave in the user's repository.
    command = ["git", "--no-optional-locks", "-c", "core.hooksPath=/dev/null"]
    return subprocess.run(
        [*command, "-C", str(folder), *arguments],
        env=variables | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        input=text,
        pass_fds=() if holds is None else (holds.descriptor,),
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        timeout=timeout_sec,
    )
