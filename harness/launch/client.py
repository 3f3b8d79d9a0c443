"""Engines whose client is a program, such as ``srun``: started, watched, ended."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

from harness.errors import LaunchError
from harness.launch.engine import Engine
from harness.trial import waiting
from harness.trial.ending import LOGS
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TAIL_BYTES = 4000


class ClientEngine(Engine):
    """A gang that one program starts, and that ends with it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        trial_dir: Path,
        variables: Mapping[str, str],
        log: str,
        hint: str,
        end_by_itself_sec: float,
        message: bytes | None = None,
    ) -> None:
        """Starts the program."""
        folder = trial_dir / LOGS
        folder.mkdir(exist_ok=True)
        self._log = folder / log
        self._end_by_itself_sec = end_by_itself_sec
        with self._log.open("wb") as file:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL if message is None else subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    cwd=trial_dir,
                    # Ctrl-C in the terminal must reach only the harness.
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(
                    f"cannot run {command[0]}: {error.strerror or error}; {hint}"
                ) from error
        if message is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its exit code says why
                self._process.stdin.write(message)
                self._process.stdin.flush()

    def poll(self) -> int | None:
        """Exit code of the program."""
        return self._process.poll()

    def output(self) -> str:
        """What the program said."""
        return untrusted.tail(self._log, _TAIL_BYTES)

    def cancel(self) -> None:
        """Ends the program, which normally ends with its members."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        for end in (None, self._process.terminate, self._process.kill):
            if end is not None:
                end()
            try:
                waiting.wait(self._process, self._end_by_itself_sec)
            except subprocess.TimeoutExpired:
                continue
            return
