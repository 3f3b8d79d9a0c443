"""A gang: the members of a trial that an engine starts on several hosts.

An engine starts the same command so many times at once, and lets each know which one it
is; the rest is the same for all engines. The harness itself waits for the members. Each
connects and says how its process ended. The trial is over when every rank has ended;
then the rest is cancelled. When a rank fails, the others get a grace period to record
what they observed.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hmac
import json
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from harness.errors import LaunchError
from harness.machine.machine_state import read_oom_kills
from harness.trial import process_tree, rank_file
from harness.trial.rank_file import GRACE_SEC, LOGS, FirstExit, cause_of, signal_name
from replicator.cluster import environment, port_filter
from replicator.cluster.local_cluster import LineListener
from results.store import untrusted, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.machine.allocation import Member


_PLAN = "gang.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """The members that an engine has to start at the same time."""

    trial_dir: Path  # That of the trial, which all hosts see; also the current one.
    members: Sequence[Member]  # Kind and index of each.
    members_per_host: int  # The first so many are on the first host, and so on.
    cpusets: Sequence[Sequence[int]] = ()  # The cores of each, on its host.
    num_ranks: int = 0  # How many of them are measured: the first ones.
    # What each of them runs; it learns from the engine which one it is.
    command: Sequence[str] = ()
    variables: Mapping[str, str]  # Its environment.

    @property
    def num_members(self) -> int:
        return len(self.members)

    @property
    def num_hosts(self) -> int:
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
        message: str | None = None,
    ) -> None:
        folder = trial_dir / LOGS
        folder.mkdir(exist_ok=True)
        self._log = folder / log
        self._end_by_itself_sec = end_by_itself_sec
        with self._log.open("wb") as file:
            try:
                self._process = psutil.Popen(
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
            with contextlib.suppress(BrokenPipeError):  # its exit code says why
                self._process.stdin.write(message.encode())
                self._process.stdin.flush()

    def poll(self) -> int | None:
        return self._process.poll()

    def output(self) -> str:
        return untrusted.tail(self._log, _TAIL_BYTES)

    def cancel(self) -> None:
        """Ends the program, which normally ends with its members."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._process.send_signal(number)
            with contextlib.suppress(psutil.TimeoutExpired):
                process_tree.wait_for_end(self._process, self._end_by_itself_sec)
                return


# Lines of JSON over TCP, after a secret that only processes of the trial know. Members
# end when it is closed: the kernel of the harness's host closes it however the harness
# ends, and keepalive finds out when the host itself is gone.

ADDRESS_VARIABLE: Final = "REPLICATOR_HARNESS_GANG"
"""``host:port`` of the harness."""
HOST_IN_VARIABLE: Final = "REPLICATOR_HARNESS_GANG_HOST_IN"
"""The variable in which the engine tells each member the address of the harness's host;
without it, the host's own name is used."""
SECRET_VARIABLE: Final = "REPLICATOR_HARNESS_GANG_SECRET"  # noqa: S105 (a name)
REFUSED: Final = 78
"""Exit code where no process was started: no rank can have failed (EX_CONFIG)."""
_CONNECT_SEC = 30.0
_PROBE_SEC = 5
_LOST_SEC = 20
"""A host that has not answered for this long is gone."""
_MAX_LINE_BYTES = 65536


def keep_alive(connection: socket.socket) -> None:
    """Makes the kernel notice within ``_LOST_SEC`` that the other host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _PROBE_SEC),
        (socket.TCP_KEEPINTVL, _PROBE_SEC),
        (socket.TCP_KEEPCNT, _LOST_SEC // _PROBE_SEC - 1),
        (socket.TCP_USER_TIMEOUT, _LOST_SEC * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def with_host(address: str, host: str) -> str:
    """Returns an address with another host: a name may mean a loopback elsewhere."""
    return f"{host}:{address.rpartition(':')[2]}"


def connect(address: str, secret: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), _CONNECT_SEC)
    connection.settimeout(None)
    keep_alive(connection)
    send(connection, secret=secret)
    return connection


def send(connection: socket.socket, **message: Any) -> None:
    connection.sendall(json.dumps(message).encode("ascii") + b"\n")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemberEnd:
    code: int  # Exit code of its process, negative for a signal.
    # Kills for want of memory on its host while it ran; None where it does not know.
    oom_kills: int | None = None
    lost: str = ""  # Why the end of its connection counts as that of the process.
    text: str = ""  # The end of what the process printed, where it failed.


class MemberExits:
    """Where the members of a gang report how their processes ended, until it closes."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)  # Known to processes of the trial only.
        # By place among the members, in the order in which they ended.
        self.ends: dict[int, MemberEnd] = {}
        self.refused: list[str] = []  # Why members did not start their processes.
        listener = socket.create_server(("", 0), backlog=socket.SOMAXCONN)
        self.address = f"{socket.gethostname()}:{listener.getsockname()[1]}"
        # Where this host has a public address, so have its members: then the secret
        # alone keeps strangers out, as on systems without such filters.
        own = [str(address) for address in port_filter.resolve(self.address)]
        if all(port_filter.allows(port_filter.PRIVATE, address) for address in own):
            with contextlib.suppress(OSError):
                port_filter.restrict(listener, port_filter.Reach.PRIVATE)
        self._listener = LineListener(listener, max_line_bytes=_MAX_LINE_BYTES)
        # Place and host of each member that has shown the secret, once it has said it.
        self._members: dict[socket.socket, tuple[int, str] | None] = {}

    def texts(self) -> list[str]:
        """What members said, for the record of a failure."""
        texts = [self.ends[index].text for index in sorted(self.ends)]
        return [*filter(None, texts), *self.refused]

    def read(self, timeout_sec: float) -> None:
        for connection, line in self._listener.read(timeout_sec):
            if line is None:
                self._lose(connection)
                continue
            try:
                self._take(connection, line)
            except (ValueError, KeyError, TypeError, RecursionError):
                self._listener.drop(connection)
                self._lose(connection)

    def _take(self, connection: socket.socket, line: bytes) -> None:
        """Nothing is believed before the secret: anybody can connect."""
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("not a message")  # noqa: TRY004 (bytes, not a type)
        if connection not in self._members:
            said = str(message.get("secret", ""))
            if not hmac.compare_digest(said.encode(), self.secret.encode()):
                raise ValueError("wrong secret")
            keep_alive(connection)
            self._listener.admit(connection)
            self._members[connection] = None
        elif "refused" in message:
            self.refused.append(str(message["refused"]))
        elif "exit_code" not in message:
            who = int(message["place"]), str(message["host"])
            self._members[connection] = who
        elif (member := self._members[connection]) is not None:
            index, host = member
            kills, tail = message.get("oom_kills"), message["tail"]
            self.ends[index] = MemberEnd(
                code=int(message["exit_code"]),
                oom_kills=None if kills is None else int(kills),
                text=f"-- process {index} on {host}:\n{tail}" if tail else "",
            )
        else:
            raise ValueError("an end before a beginning")

    def _lose(self, connection: socket.socket) -> None:
        """A member that reported no exit was killed, or lost."""
        member = self._members.pop(connection, None)
        if member is not None and member[0] not in self.ends:
            index, host = member
            said = (
                f"the connection to process {index} on host {host!r} was lost: it was"
                " killed, or its host failed"
            )
            self.ends[index] = MemberEnd(code=-signal.SIGKILL, lost=said)

    def close(self) -> None:
        """Closes all connections, by which members end; harmless if they are closed."""
        self._listener.close()


_POLL_SEC = 0.1
_SETTLE_SEC = 2.0
"""For reports on their way when the engine's own client has ended."""


class RunningGang:
    """The members of a trial, from their start to their end."""

    def __init__(self, start_members: Callable[[Gang], Engine], gang: Gang) -> None:
        # The most informative one, negative for a signal; None while ranks run.
        self.exit_code: int | None = None
        self.output: tuple[str, ...] = ()  # What belongs to the record of a failure.
        # Kills for want of memory on the host of the rank that failed first, while it
        # ran; None where its member did not say.
        self.num_oom_kills: int | None = None
        self._start_members = start_members
        self._gang = gang
        self._exits: MemberExits | None = None
        self._engine: Engine | None = None
        self._deadline = math.inf  # of the other ranks, once one has failed
        self._settled = math.inf  # of reports, once the engine's own client has ended

    def start(self) -> None:
        """Lets the engine start the members; it may refuse, which ends the gang."""
        gang, self._exits = self._gang, MemberExits()
        # The records say the same to members, but reading them imports a library that
        # takes longer than all else that members do.
        plan = {"members": gang.members, "cpusets": gang.cpusets}
        writing.write_text(gang.trial_dir / _PLAN, json.dumps(plan) + "\n")
        variables = {
            **gang.variables,
            ADDRESS_VARIABLE: self._exits.address,
            SECRET_VARIABLE: self._exits.secret,
        }
        gang = dataclasses.replace(gang, variables=variables)
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
                raise psutil.TimeoutExpired(timeout_sec)
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
        """Returns 0 or the most informative exit code; None while ranks run."""
        if exits.refused:
            return self._refuse(exits.refused[0])
        num_ranks = self._gang.num_ranks
        ended = [rank for rank in exits.ends if rank < num_ranks]
        bad = {rank: end.code for rank in ended if (end := exits.ends[rank]).code}
        now = time.monotonic()
        if bad:
            self._deadline = min(self._deadline, now + GRACE_SEC)
        if len(ended) < num_ranks:
            if engine.poll() is not None:
                self._settled = min(self._settled, now + _SETTLE_SEC)
            if now > self._settled and not bad:
                return self._refuse(_why_ended(engine))
            if now <= min(self._settled, self._deadline):
                return None
        if not bad:
            return 0
        rank, code = cause_of(bad, self._gang.trial_dir), engine.poll()
        self.num_oom_kills, reason = exits.ends[rank].oom_kills, exits.ends[rank].lost
        if reason and code is not None and code < 0:  # its tasks end with it
            name = signal_name(-code)
            reason += f"; the engine's own client ended with signal {name}"
        first = FirstExit(rank=rank, reason=reason)
        rank_file.write_first_exit(self._gang.trial_dir, first)
        return bad[rank]

    def _refuse(self, reason: str) -> int:
        rank_file.write_first_exit(self._gang.trial_dir, FirstExit(reason=reason))
        return REFUSED


def _why_ended(engine: Engine) -> str:
    lines = [line.strip() for line in engine.output().splitlines() if line.strip()]
    if engine.poll() == REFUSED and lines:  # its own message, made to be read
        return lines[-1]
    said = " ".join(" ".join(lines).split())[-300:]
    return (
        f"the engine ended with exit code {engine.poll()} before all ranks reported how"
        f" they ended: {said or 'it said nothing'}"
    )


# One member of a gang starts one process of a trial on its host, and waits for it:
#
#     python -m harness.launch.gang <worker command...> <trial directory>
#
# An engine starts it; the replicator's cluster environment says which one it is. It
# pins the process to its cores, reports its exit to the harness, and kills it when the
# connection to the harness is lost. It exits as the process did.


def main(argv: Sequence[str]) -> int:
    trial_dir = Path(argv[-1])
    config = environment.detect().config()
    address = os.environ[ADDRESS_VARIABLE]
    # As the engine knows it.
    if host := os.environ.get(os.environ.get(HOST_IN_VARIABLE, "")):
        address = with_host(address, host)
    connection = connect(address, os.environ[SECRET_VARIABLE])
    try:
        index, cores = _own(trial_dir, (config.kind, config.index))
    except LaunchError as error:
        send(connection, refused=str(error))
        return REFUSED
    send(connection, place=index, host=socket.gethostname())
    name = f"{config.kind}_{config.index}"
    log_path = trial_dir / LOGS / f"{name}.log"
    log_path.parent.mkdir(exist_ok=True)
    kills_before = read_oom_kills()
    with _temporary_folder(name) as temporary:
        code = _run(argv, cores, log_path, temporary, connection)
    kills = None if kills_before is None else (read_oom_kills() or 0) - kills_before
    with contextlib.suppress(OSError):
        send(
            connection,
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

    def prepare() -> None:
        process_tree.request_death_signal()
        # The signal is lost if the parent ended before the request.
        if os.getppid() != own:
            os._exit(1)
        if cores:
            os.sched_setaffinity(0, cores)

    with log_path.open("ab") as log:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,  # closed when this process ends, however it does
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": str(temporary)},
                start_new_session=True,  # so that its own children are killed with it
                # This process has no threads yet. A local cluster, which has, needs a
                # program between (``replicator.cluster.die_with_parent``).
                preexec_fn=prepare,  # noqa: PLW1509
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.write(f"cannot run {argv[0]}: {error}\n".encode())
            return 127

    def end_with_harness() -> None:
        with contextlib.suppress(OSError):
            while connection.recv(4096):
                pass
        process_tree.kill_group(process.pid)

    threading.Thread(target=end_with_harness, name="watch-gang", daemon=True).start()
    # Not yet reaped, it still reserves the id of its group.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    process_tree.kill_group(process.pid)
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
    from harness.machine import owned_folders  # slow, and rarely needed

    owned_folders.remove_abandoned()
    with owned_folders.made(owned_folders.MEMBER) as own:
        yield own.path


def _own(trial_dir: Path, member: Member) -> tuple[int, Sequence[int]]:
    """Returns the place of this member and its cores, after checking this host."""
    try:
        plan = json.loads((trial_dir / _PLAN).read_bytes())
    except OSError as error:
        raise LaunchError(
            f"host {socket.gethostname()!r} cannot read the trial in"
            f" {str(trial_dir)!r} ({error.strerror or error}); choose a --runs-dir on a"
            " file system that all hosts share"
        ) from error
    members = [tuple(each) for each in plan["members"]]
    if member not in members:
        raise LaunchError(
            f"the engine started {member[0]} {member[1]}, but the trial has"
            f" {len(members)} processes: {members}; start as many tasks"
        )
    index = members.index(member)
    cores: Sequence[int] = plan["cpusets"][index]
    allowed = os.sched_getaffinity(0)
    if not set(cores) <= allowed:
        raise LaunchError(
            f"host {socket.gethostname()!r} grants the cores {sorted(allowed)}, but"
            f" {member[0]} {member[1]} is placed on {sorted(cores)}; ask for whole"
            " hosts of the same kind (Slurm: --exclusive)"
        )
    return index, cores


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
