"""The actor that Ray runs on each host of a gang: starts the members, and ends them.

Ray sends it to the hosts by value, so it uses the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_TERMINATE_GRACE_SEC = 3.0
_KILL_GRACE_SEC = 10.0
_POLL_SEC = 0.05


class HostMembers:
    """The members of a gang on one host; lives in an actor of Ray.

    The members end with the actor, and the actor with the program that made it, however
    either exits.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def free_ports(self, count: int) -> list[int]:
        """Ports that are free on this host."""
        with contextlib.ExitStack() as reserved:
            sockets = [
                reserved.enter_context(socket.socket(socket.AF_INET))
                for _ in range(count)
            ]
            for one in sockets:
                one.bind(("", 0))
            return [int(one.getsockname()[1]) for one in sockets]

    def start(
        self,
        command: Sequence[str],
        variables: Sequence[Mapping[str, str]],
        folder: str,
    ) -> str:
        """Starts the members."""
        own = os.getpid()
        libc = ctypes.CDLL(None)

        def die_with_the_actor() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != own:
                os._exit(1)

        try:
            for own_variables in variables:
                self._processes.append(
                    subprocess.Popen(
                        list(command),
                        env=dict(own_variables),
                        cwd=folder,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                        preexec_fn=die_with_the_actor,  # noqa: PLW1509 - of libc only
                    )
                )
        except OSError as error:
            return f"host {socket.gethostname()!r}: {error}"
        return ""

    def poll(self) -> list[int | None]:
        """The exit code of each member, negative for a signal; None while it runs."""
        return [process.poll() for process in self._processes]

    def stop(self) -> bool:
        """Ends the members; returns whether all are gone."""
        for number, grace_sec in (
            (signal.SIGTERM, _TERMINATE_GRACE_SEC),
            (signal.SIGKILL, _KILL_GRACE_SEC),
        ):
            for process in self._processes:
                if process.poll() is None:
                    with contextlib.suppress(OSError):
                        os.killpg(process.pid, number)
            deadline = time.monotonic() + grace_sec
            while time.monotonic() < deadline:
                if None not in self.poll():
                    return True
                time.sleep(_POLL_SEC)
        return None not in self.poll()
