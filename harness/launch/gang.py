"""The first process of a trial whose members an engine starts on several hosts.

    python -m harness.launch.gang <launcher> <worker command...> <trial directory>

It runs beside the harness, and ends with it. Each member connects and says how its
process ended. The trial is over when every rank has ended; then the rest is cancelled.
When a rank fails, the others get a grace period to record what they observed. Exits as
the rank did, so that the harness recognizes a crash or a kill by the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness import catalog as backends
from harness.errors import LaunchError
from harness.launch import catalog, channel
from harness.launch.contract import HOSTS_VARIABLE
from harness.launch.exits import MemberExits
from harness.launch.remote import MEMBER_COMMAND, Gang, RemoteLauncher
from harness.placement import hosts
from harness.placement.processes import processes_of
from harness.trial import die_with_parent
from harness.trial.ranks import GRACE_SEC
from replicator.cluster.environment import roles
from results.records import TrialSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.launch.remote import Engine
    from harness.placement.processes import Member

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
    spec = TrialSpec.model_validate_json((trial_dir / "spec.json").read_bytes())
    processes = processes_of(
        backends.backend(spec.backend), spec.num_replicas, spec.control
    )
    num_members = len(processes.members) or 1
    # As planned: asking the engine again takes seconds.
    num_hosts = int(spec.variables.get(HOSTS_VARIABLE, 1))
    with MemberExits() as exits:
        gang = Gang(
            trial_dir=trial_dir,
            num_members=num_members,
            members_per_host=hosts.members_per_host(num_members, num_hosts),
            command=(*MEMBER_COMMAND, *worker_command, directory),
            variables={
                **os.environ,
                channel.ADDRESS_VARIABLE: exits.address,
                channel.SECRET_VARIABLE: exits.secret,
                **_roles(processes.members),
            },
        )
        try:
            engine = launcher.start(gang)
        except LaunchError as error:
            return _tell(str(error), REFUSED)
        try:
            return _exit_code(exits, engine, processes.num_ranks)
        finally:
            exits.close()  # members end
            engine.cancel()


def _roles(members: Sequence[Member]) -> dict[str, str]:
    """Tells members that only have a rank what they are."""
    kinds = [kind for kind, _ in members]
    counts = [f"{kind}:{kinds.count(kind)}" for kind in dict.fromkeys(kinds)]
    return {roles.VARIABLE: ",".join(counts)} if counts else {}


def _exit_code(exits: MemberExits, engine: Engine, num_ranks: int) -> int:
    worst = _wait(exits, engine, num_ranks)
    for text in exits.texts():
        _tell(text, 0)
    if worst:
        # The harness records the end of this process's output with the failure.
        _tell(engine.output(), 0)
    return worst


def _tell(text: str, code: int) -> int:
    sys.stderr.write(text.rstrip() + "\n" if text.strip() else "")
    sys.stderr.flush()
    return code


def _wait(exits: MemberExits, engine: Engine, num_ranks: int) -> int:
    """Waits for the ranks; returns 0 or the most informative exit code.

    A killed rank explains why others failed, so its signal takes precedence.
    """
    deadline = None
    ended = None
    while True:
        exits.read(_POLL_SEC)
        codes = [exits.codes.get(rank) for rank in range(num_ranks)]
        if exits.refused:
            return REFUSED
        if None not in codes:
            break
        now = time.monotonic()
        if any(codes) and deadline is None:
            deadline = now + GRACE_SEC
        if ended is None and engine.poll() is not None:
            ended = now
        if ended is not None and now > ended + _SETTLE_SEC:
            missing = [rank for rank, code in enumerate(codes) if code is None]
            exits.notes.append(
                f"the engine ended with exit code {engine.poll()} before ranks"
                f" {missing} reported how they ended"
            )
            return min((code for code in codes if code), default=engine.poll() or 1)
        if deadline is not None and now > deadline:
            break
    return min((code for code in codes if code), default=0)


def end_like(code: int) -> int:
    """Ends this process with the signal that a negative exit code stands for."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL needs no default
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(end_like(main(sys.argv[1:])))
