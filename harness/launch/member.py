"""One member of a gang: starts one process of a trial on its host, and waits for it.

    python -m harness.launch.member <worker command...> <trial directory>

An engine starts it; the replicator's cluster environment says which one it is. It pins
the process to its cores, reports its exit to the harness, and kills it when the
connection to the harness is lost. Exits as the process did.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import replicator.cluster
from harness.errors import LaunchError
from harness.launch import channel
from harness.launch.gang_plan import GangPlan
from harness.trial.ending import LOGS
from replicator.cluster import environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.placement.processes import Member

_TAIL_BYTES = 4000
_CHILD = Path(replicator.cluster.__file__).with_name("child.py")


def main(argv: Sequence[str]) -> int:
    """Runs the process of this member; returns its exit code."""
    trial_dir = Path(argv[-1])
    config = environment.detect().config()
    member = (config.kind, config.index)
    connection = channel.connect(
        channel.own_address(os.environ), os.environ[channel.SECRET_VARIABLE]
    )
    try:
        place, cores = _own(trial_dir, member)
    except LaunchError as error:
        channel.send(
            connection, member=member, host=socket.gethostname(), refused=str(error)
        )
        return channel.REFUSED
    channel.send(connection, member=member, place=place, host=socket.gethostname())
    log_path = trial_dir / LOGS / f"{config.kind}_{config.index}.log"
    log_path.parent.mkdir(exist_ok=True)
    with _temporary_folder(f"{config.kind}_{config.index}") as temporary:
        code = _run(argv, cores, log_path, temporary, connection)
    with contextlib.suppress(OSError):
        channel.send(
            connection, member=member, exit_code=code, tail=_tail(log_path) * bool(code)
        )
    return code if code >= 0 else 128 - code


def _run(
    argv: Sequence[str],
    cores: Sequence[int],
    log_path: Path,
    temporary: Path,
    connection: socket.socket,
) -> int:
    """Runs the process of this member to its end; returns its exit code."""
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            # As a local cluster does: tied to this process, then pinned.
            [
                sys.executable,
                "-S",
                str(_CHILD),
                str(os.getpid()),
                ",".join(map(str, sorted(cores))),
                *argv,
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
            start_new_session=True,  # so that its own children are killed with it
        )
    threading.Thread(
        target=_end_with, args=(connection, process), name="watch-gang", daemon=True
    ).start()
    # Not yet reaped, it still reserves the id of its group.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    _kill_group(process)
    return process.wait()


@contextlib.contextmanager
def _temporary_folder(name: str) -> Iterator[Path]:
    """Makes one on this host; that of the harness need not exist here."""
    given = os.environ.get("TMPDIR")
    if given and Path(given).is_dir():  # the harness removes it, whatever happens here
        folder = Path(given, name)
        folder.mkdir(exist_ok=True)
        yield folder
        return
    import tempfile  # slow, and rarely needed

    with tempfile.TemporaryDirectory(
        prefix="replicator-member-", ignore_cleanup_errors=True
    ) as own:
        yield Path(own)


def _own(trial_dir: Path, member: Member) -> tuple[int, Sequence[int]]:
    """Returns the place of this member and its cores, after checking this host.

    Raises:
      LaunchError: This host does not see the trial, or lacks the cores.
    """
    try:
        plan = GangPlan.read(trial_dir)
    except OSError as error:
        raise LaunchError(
            f"host {socket.gethostname()!r} cannot read the trial in"
            f" {str(trial_dir)!r} ({error.strerror or error}); choose a --runs-dir on a"
            " file system that all hosts share"
        ) from error
    if member not in plan.members:
        raise LaunchError(
            f"the engine started {member[0]} {member[1]}, but the trial has"
            f" {len(plan.members)} processes: {list(plan.members)}; start as many tasks"
        )
    place = plan.members.index(member)
    cores = plan.cpusets[place]
    allowed = os.sched_getaffinity(0)
    if not set(cores) <= allowed:
        raise LaunchError(
            f"host {socket.gethostname()!r} grants the cores {sorted(allowed)}, but"
            f" {member[0]} {member[1]} is placed on {sorted(cores)}; ask for whole"
            " hosts of the same kind (Slurm: --exclusive)"
        )
    return place, cores


def _end_with(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Kills the process when the harness has gone, or ends the gang."""
    with contextlib.suppress(OSError):
        while connection.recv(4096):
            pass
    _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _tail(path: Path) -> str:
    return path.read_bytes()[-_TAIL_BYTES:].decode("utf-8", errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
