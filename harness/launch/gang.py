"""The first process of a trial whose members an engine starts on several hosts.

    python -m harness.launch.gang <launcher> <worker command...> <trial directory>

It runs beside the harness, and ends with it. Each member connects and says how its
process ended. The trial is over when every rank has ended; then the rest is cancelled.
When a rank fails, the others get a grace period to record what they observed. Exits as
the rank did, so that the harness recognizes a crash or a kill by the signal.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import LaunchError
from harness.launch import catalog, channel
from harness.launch.exits import MemberExits
from harness.launch.gang_plan import GangPlan
from harness.launch.remote import MEMBER_COMMAND, Gang, RemoteLauncher
from harness.trial import die_with_parent, first_exit
from harness.trial.ending import GRACE_SEC, cause_of, end_like
from harness.trial.first_exit import FirstExit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.launch.remote import Engine

_POLL_SEC = 0.1
_SETTLE_SEC = 2.0
"""For reports on their way when the engine's own client has ended."""
REFUSED = 78
"""Exit code where no process was started: no rank can have failed."""


def main(argv: Sequence[str]) -> int:
    """Runs the members of a trial; returns the most informative exit code."""
    name, *worker_command, directory = argv
    die_with_parent.request_death_signal()
    die_with_parent.watch_pipe(sys.stdin.fileno())
    trial_dir = Path(directory)
    launcher = catalog.make(name)
    if not isinstance(launcher, RemoteLauncher):
        raise TypeError(f"launcher {name!r} starts the processes of a trial itself")
    plan = GangPlan.read(trial_dir)
    with MemberExits() as exits:
        gang = Gang(
            trial_dir=trial_dir,
            members=plan.members,
            members_per_host=plan.members_per_host,
            command=(*MEMBER_COMMAND, *worker_command, directory),
            variables={
                **os.environ,
                channel.ADDRESS_VARIABLE: exits.address,
                channel.SECRET_VARIABLE: exits.secret,
                **plan.variables,
            },
        )
        try:
            engine = launcher.start(gang)
        except LaunchError as error:
            return _refuse(trial_dir, str(error))
        try:
            code = _wait(exits, engine, plan.num_ranks, trial_dir)
            if code:
                # The harness records the end of this output with the failure.
                for part in (*exits.texts(), engine.output()):
                    _print(part)
            return code
        finally:
            exits.close()  # members end
            engine.cancel()


def _refuse(trial_dir: Path, reason: str) -> int:
    first_exit.write(trial_dir, FirstExit(reason=reason))
    _print(reason)
    return REFUSED


def _print(text: str) -> None:
    sys.stderr.write(text.rstrip() + "\n" if text.strip() else "")
    sys.stderr.flush()


def _wait(exits: MemberExits, engine: Engine, num_ranks: int, trial_dir: Path) -> int:
    """Waits for the ranks; returns 0 or the most informative exit code.

    A killed rank explains why others failed, so its signal takes precedence.
    """
    deadline: float | None = None
    ended: float | None = None
    bad: dict[int, int] = {}
    while deadline is None or time.monotonic() < deadline:
        exits.read(_POLL_SEC)
        if exits.refused:
            return _refuse(trial_dir, exits.refused[0])
        # In the order in which they ended.
        codes = {rank: c for rank, c in exits.codes.items() if rank < num_ranks}
        bad = {rank: code for rank, code in codes.items() if code}
        if bad and deadline is None:
            deadline = time.monotonic() + GRACE_SEC
        if len(codes) == num_ranks:
            break
        if ended is None and engine.poll() is not None:
            ended = time.monotonic()
        if ended is not None and time.monotonic() > ended + _SETTLE_SEC:
            if not bad:
                return _refuse(trial_dir, _why_engine_ended(engine))
            break
    if not bad:
        return 0
    rank = cause_of(bad)
    reason = exits.lost.get(rank, "")
    first_exit.write(trial_dir, FirstExit(rank=rank, reason=reason))
    return bad[rank]


def _why_engine_ended(engine: Engine) -> str:
    said = " ".join(engine.output().split())[-300:]
    return (
        f"the engine ended with exit code {engine.poll()} before all ranks reported how"
        f" they ended: {said or 'it said nothing'}"
    )


if __name__ == "__main__":
    sys.exit(end_like(main(sys.argv[1:])))
