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
import shlex
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.errors import LaunchError
from harness.trial import measure
from harness.trial.rank_file import LOGS
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
                measure.wait_for_turn(self._process, self._end_by_itself_sec)
            except subprocess.TimeoutExpired:
                continue
            return


# Values are never pasted into a file: in YAML they are quoted strings, in shell scripts
# quoted words.


def render_template(path: Path, **values: Any) -> str:
    """Returns a template with its values filled in.

    Args:
      path: Its file.
      **values: By the names that the template uses; one that is missing is an error.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - no HTML; the filters below quote
    )
    environment.filters["quoted"] = _quoted
    environment.filters["word"] = lambda value: shlex.quote(str(value))
    environment.filters["words"] = shlex.join
    return environment.get_template(path.name).render(**values)


def _quoted(value: str) -> str:
    """A string in YAML, in one line and in ASCII, whatever is in it."""
    import yaml

    text = yaml.safe_dump(value, default_style='"', width=float("inf"))
    return text.strip()


# Lines of JSON over TCP, after a secret that only processes of the trial know. Members
# end when it is closed: the kernel of the harness's host closes it however the harness
# ends, and keepalive finds out when the host itself is gone.

ADDRESS_VARIABLE: Final = "REPLICATOR_HARNESS_GANG"
"""Environment variable with ``host:port`` of the harness."""
HOST_IN_VARIABLE: Final = "REPLICATOR_HARNESS_GANG_HOST_IN"
"""Environment variable with the name of the one in which the engine tells each member
the address of the harness's host; without it, the host's own name is used."""
SECRET_VARIABLE: Final = "REPLICATOR_HARNESS_GANG_SECRET"  # noqa: S105 (a name)
CONNECT_TIMEOUT_SEC: Final = 30.0
LOST_AFTER_SEC: Final = 20
"""A host that has not answered for this long is gone."""
REFUSED: Final = 78
"""Exit code where no process was started: no rank can have failed (EX_CONFIG)."""
_PROBE_SEC = 5
MAX_LINE_BYTES: Final = 65536


def keep_alive(connection: socket.socket) -> None:
    """Makes the kernel notice within ``LOST_AFTER_SEC`` that the other host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SEC)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SEC)
    probes = LOST_AFTER_SEC // _PROBE_SEC - 1
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_AFTER_SEC * 1000
    )


def own_address(environ: Mapping[str, str]) -> str:
    """Returns where a member finds the harness.

    An engine may know it better: a host's own name may mean its loopback address
    elsewhere.
    """
    address = environ[ADDRESS_VARIABLE]
    if host := environ.get(environ.get(HOST_IN_VARIABLE, "")):
        return f"{host}:{address.rpartition(':')[2]}"
    return address


def connect(address: str, secret: str) -> socket.socket:
    """Connects a member to the harness."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_SEC)
    connection.settimeout(None)
    keep_alive(connection)
    send(connection, secret=secret)
    return connection


def send(connection: socket.socket, **message: Any) -> None:
    """Sends one message."""
    connection.sendall(json.dumps(message).encode("ascii") + b"\n")
