"""A gang: the members of a trial that an engine starts on several hosts.

The harness itself waits for them. Each member connects and says how its process ended.
The trial is over when every rank has ended; then the rest is cancelled. When a rank
fails, the others get a grace period to record what they observed.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from typing import TYPE_CHECKING

from harness.errors import LaunchError
from harness.launch import engine as engine_lib
from harness.launch.engine import Gang
from harness.launch.exits import MemberExits
from harness.trial import rank_file
from harness.trial.rank_file import GRACE_SEC, FirstExit, cause_of, signal_name
from results.store import atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from harness.launch.engine import Engine
    from harness.placement.processes import Member

    StartMembers = Callable[[Gang], Engine]


# The records say the same, but reading them imports a library that takes longer than
# all else that these processes do until the worker starts.

_NAME = "gang.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GangPlan:
    """The members of a gang and their places."""

    members: tuple[Member, ...]  # Kind and index of each.
    cpusets: tuple[tuple[int, ...], ...]  # The cores of each, on its host.
    num_ranks: int  # How many of them are measured: the first ones.
    members_per_host: int  # The first so many are on the first host, and so on.
    # Environment variables that say to members what they are, where their engine only
    # numbers them.
    variables: dict[str, str]

    def write(self, trial_dir: Path) -> None:
        """Writes the file."""
        atomic.write_text(trial_dir / _NAME, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, trial_dir: Path) -> GangPlan:
        """Reads the file."""
        fields = json.loads((trial_dir / _NAME).read_bytes())
        return cls(
            members=tuple((kind, index) for kind, index in fields["members"]),
            cpusets=tuple(map(tuple, fields["cpusets"])),
            num_ranks=fields["num_ranks"],
            members_per_host=fields["members_per_host"],
            variables=fields["variables"],
        )


_POLL_SEC = 0.1
_SETTLE_SEC = 2.0
"""For reports on their way when the engine's own client has ended."""


class RunningGang:
    """The members of a trial, from their start to their end.

    Attributes:
      exit_code: The most informative exit code, negative for a signal; None while ranks
        run.
      output: What belongs to the record of a failure.
      num_oom_kills: Kills for want of memory on the host of the rank that failed first,
        while it ran; None where its member did not say.
    """

    def __init__(
        self,
        start_members: StartMembers,
        trial_dir: Path,
        variables: Mapping[str, str],
        command: Sequence[str],
    ) -> None:
        """Plans the gang; ``start`` starts it."""
        self.exit_code: int | None = None
        self.output: tuple[str, ...] = ()
        self.num_oom_kills: int | None = None
        self._start_members = start_members
        self._trial_dir = trial_dir
        self._variables = variables
        self._command = (*command, str(trial_dir))
        self._exits: MemberExits | None = None
        self._engine: Engine | None = None
        self._num_ranks = 0
        self._deadline: float | None = None
        self._engine_ended: float | None = None

    def start(self) -> None:
        """Lets the engine start the members; it may refuse, which ends the gang."""
        plan = GangPlan.read(self._trial_dir)
        self._num_ranks = plan.num_ranks
        self._exits = exits = MemberExits()
        gang = Gang(
            trial_dir=self._trial_dir,
            members=plan.members,
            members_per_host=plan.members_per_host,
            command=self._command,
            variables={
                **self._variables,
                engine_lib.ADDRESS_VARIABLE: exits.address,
                engine_lib.SECRET_VARIABLE: exits.secret,
                **plan.variables,
            },
        )
        try:
            self._engine = self._start_members(gang)
        except LaunchError as error:
            self.exit_code = self._refuse(str(error))
            self.output = (str(error),)

    def wait(self, timeout_sec: float) -> None:
        """Waits for the ranks; ``exit_code`` says how they ended."""
        end = time.monotonic() + timeout_sec
        while self.exit_code is None:
            assert self._exits is not None
            assert self._engine is not None
            left_sec = end - time.monotonic()
            if left_sec <= 0:
                raise subprocess.TimeoutExpired(self._command, timeout_sec)
            self._exits.read(min(_POLL_SEC, left_sec))
            self.exit_code = self._judge(self._exits, self._engine)
            if self.exit_code:
                self.output = (*self._exits.texts(), self._engine.output())

    def end(self) -> None:
        """Ends the members and the engine; harmless if they have ended."""
        if self._exits is not None:
            self._exits.close()  # members end
        if self._engine is not None:
            self._engine.cancel()

    def _judge(self, exits: MemberExits, engine: Engine) -> int | None:
        """Returns 0 or the most informative exit code; None while ranks run.

        A killed rank explains why others failed, so its signal takes precedence.
        """
        if exits.refused:
            return self._refuse(exits.refused[0])
        # In the order in which they ended.
        codes = {rank: c for rank, c in exits.codes.items() if rank < self._num_ranks}
        bad = {rank: code for rank, code in codes.items() if code}
        now = time.monotonic()
        if bad and self._deadline is None:
            self._deadline = now + GRACE_SEC
        if len(codes) < self._num_ranks:
            if self._engine_ended is None and engine.poll() is not None:
                self._engine_ended = now
            is_lost = (
                self._engine_ended is not None
                and now > self._engine_ended + _SETTLE_SEC
            )
            if is_lost and not bad:
                return self._refuse(_why_ended(engine))
            is_late = self._deadline is not None and now > self._deadline
            if not (is_lost or is_late):
                return None
        if not bad:
            return 0
        rank = cause_of(bad)
        self.num_oom_kills = exits.oom_kills.get(rank)
        reason = exits.lost.get(rank, "")
        if reason and (code := engine.poll()) is not None and code < 0:
            # Tasks that are killed end with it.
            reason += (
                f"; the engine's own client ended with signal {signal_name(-code)}"
            )
        rank_file.write_first_exit(self._trial_dir, FirstExit(rank=rank, reason=reason))
        return bad[rank]

    def _refuse(self, reason: str) -> int:
        rank_file.write_first_exit(self._trial_dir, FirstExit(reason=reason))
        return engine_lib.REFUSED


def _why_ended(engine: Engine) -> str:
    lines = [line.strip() for line in engine.output().splitlines() if line.strip()]
    if (
        engine.poll() == engine_lib.REFUSED and lines
    ):  # its own message, made to be read
        return lines[-1]
    said = " ".join(" ".join(lines).split())[-300:]
    return (
        f"the engine ended with exit code {engine.poll()} before all ranks reported how"
        f" they ended: {said or 'it said nothing'}"
    )
