"""What an engine gets, and what it has to do: start the members of a gang and end them.

It starts the same command so many times at once, and lets each know which one it is.
The rest is the same for all engines (``harness/launch/gang.py``). Many have a client
that is a program, such as ``srun``: it is started, watched and ended.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import LaunchError
from harness.trial import waiting
from harness.trial.ending import LOGS
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.placement.processes import Member


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """The members that an engine has to start at the same time.

    Attributes:
      trial_dir: The directory of the trial, which all hosts see; also the current one.
      members: Kind and index of each.
      members_per_host: Members on each host: the first so many on the first host.
      command: What each of them runs; it learns from the engine which one it is.
      variables: Its environment variables.
    """

    trial_dir: Path
    members: tuple[Member, ...]
    members_per_host: int
    command: tuple[str, ...]
    variables: Mapping[str, str]

    def to_json(self) -> bytes:
        """Returns a line of JSON, for a client that is a process of its own."""
        fields = {**dataclasses.asdict(self), "trial_dir": str(self.trial_dir)}
        return json.dumps(fields).encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> Gang:
        """Returns what ``to_json`` has written."""
        fields = json.loads(line)
        return cls(
            trial_dir=Path(fields["trial_dir"]),
            members=tuple((kind, index) for kind, index in fields["members"]),
            members_per_host=fields["members_per_host"],
            command=tuple(fields["command"]),
            variables=fields["variables"],
        )

    @property
    def num_members(self) -> int:
        """How many they are."""
        return len(self.members)

    @property
    def num_hosts(self) -> int:
        """Hosts that the gang needs."""
        return -(-self.num_members // self.members_per_host)


class Engine(abc.ABC):
    """Members that an engine has started, or will when there is room."""

    @abc.abstractmethod
    def poll(self) -> int | None:
        """Exit code of the engine's own client; None while it runs."""

    @abc.abstractmethod
    def cancel(self) -> None:
        """Ends all members, also those that wait; harmless if they have ended."""

    def output(self) -> str:
        """What the engine said so far, for the failure of a trial."""
        return ""


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
