"""A trial whose processes an engine starts on several hosts."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from harness.run.trial_tree import ProcessTree

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import IO

    from harness.launch.gang import RunningGang
    from harness.run.trial_tree import EndElsewhere


class GangTree(ProcessTree):
    """The processes of a gang, here and elsewhere; none remains after the block."""

    def __init__(
        self,
        gang: RunningGang,
        trial_dir: Path,
        variables: Mapping[str, str],
        end_elsewhere: EndElsewhere,
    ) -> None:
        """Plans the tree; ``start`` starts it."""
        super().__init__(trial_dir, variables, (), end_elsewhere)
        self._gang = gang

    def _start_first(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        del stdout, stderr  # each process writes a file of its own
        self._gang.start()

    def wait(self, timeout_sec: float) -> None:
        """Waits until the ranks have ended, or one of them has failed."""
        self._gang.wait(timeout_sec)

    def _end_first(self) -> None:
        self._gang.end()

    def _num_oom_kills(self) -> int | None:
        return self._gang.num_oom_kills  # this host's count says nothing of theirs

    def _exit_code(self) -> int:
        code = self._gang.exit_code
        if code:
            # The harness records the end of this file with the failure.
            text = "\n".join(
                part.rstrip() for part in self._gang.output if part.strip()
            )
            with (self._trial_dir / "stderr.log").open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        return -signal.SIGKILL if code is None else code
