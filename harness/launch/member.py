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
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.errors import LaunchError
from harness.launch import gang
from harness.launch.gang import Gang
from harness.machine.machine_state import read_oom_kills
from harness.trial.rank_file import LOGS
from replicator.cluster import environment
from replicator.cluster.die_with_parent import request_death_signal
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.machine.allocation import Member

_TAIL_BYTES = 4000


def main(argv: Sequence[str]) -> int:
    trial_dir = Path(argv[-1])
    config = environment.detect().config()
    member = (config.kind, config.index)
    connection = gang.connect(
        gang.own_address(os.environ), os.environ[gang.SECRET_VARIABLE]
    )
    host = socket.gethostname()
    try:
        place, cores = _own(trial_dir, member)
    except LaunchError as error:
        gang.send(connection, member=member, host=host, refused=str(error))
        return gang.REFUSED
    gang.send(connection, member=member, place=place, host=host)
    name = f"{config.kind}_{config.index}"
    log_path = trial_dir / LOGS / f"{name}.log"
    log_path.parent.mkdir(exist_ok=True)
    kills_before = read_oom_kills()
    with _temporary_folder(name) as temporary:
        code = _run(argv, cores, log_path, temporary, connection)
    kills = None if kills_before is None else (read_oom_kills() or 0) - kills_before
    with contextlib.suppress(OSError):
        gang.send(
            connection,
            member=member,
            exit_code=code,
            tail=untrusted.tail(log_path, _TAIL_BYTES) * bool(code),
            oom_kills=kills,
        )
    return code if code >= 0 else 128 - code


def _run(
    argv: Sequence[str],
    cores: Sequence[int],
    log_path: Path,
    temporary: Path,
    connection: socket.socket,
) -> int:
    own = os.getpid()
    reads, writes = os.pipe()  # closed when this process ends, however it does
    with log_path.open("ab") as log:
        pid = os.fork()
        if pid == 0:
            os.dup2(reads, 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            _become(argv, own, cores, temporary)
    os.close(reads)
    threading.Thread(
        target=_end_with, args=(connection, pid), name="watch-gang", daemon=True
    ).start()
    # Not yet reaped, it still reserves the id of its group.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _kill_group(pid)
    _, status = os.waitpid(pid, 0)
    os.close(writes)
    return os.waitstatus_to_exitcode(status)


def _become(
    argv: Sequence[str], parent: int, cores: Sequence[int], temporary: Path
) -> NoReturn:
    """Turns a fork of this process, which has no threads yet, into the worker.

    A local cluster needs a program between (``replicator.cluster.die_with_parent``),
    since its parent has threads; starting that takes as long as all else here.
    """
    try:
        os.setsid()  # so that its own children are killed with it
        request_death_signal()
        # The signal is lost if the parent ended before the request.
        if os.getppid() != parent:
            os._exit(1)
        if cores:
            os.sched_setaffinity(0, cores)
        os.environ["TMPDIR"] = str(temporary)
        os.execvp(argv[0], list(argv))  # noqa: S606 (no shell: the arguments are a list)
    except OSError as error:
        os.write(2, f"cannot run {argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)


@contextlib.contextmanager
def _temporary_folder(name: str) -> Iterator[Path]:
    """Makes one on this host; that of the harness need not exist here."""
    given = os.environ.get("TMPDIR")
    if given and Path(given).is_dir():  # the harness removes it, whatever happens here
        folder = Path(given, name)
        folder.mkdir(exist_ok=True)
        yield folder
        return
    from harness.machine import owned_folders  # slow, and rarely needed

    owned_folders.remove_abandoned()
    with owned_folders.made(owned_folders.MEMBER) as own:
        yield own.path


def _own(trial_dir: Path, member: Member) -> tuple[int, Sequence[int]]:
    """Returns the place of this member and its cores, after checking this host."""
    try:
        plan = Gang.read(trial_dir)
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


def _end_with(connection: socket.socket, pid: int) -> None:
    """Kills the process when the harness has gone, or ends the gang."""
    with contextlib.suppress(OSError):
        while connection.recv(4096):
            pass
    _kill_group(pid)


def _kill_group(pid: int) -> None:
    # Itself as well: for a moment after the fork it is not yet in a group of its own.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
