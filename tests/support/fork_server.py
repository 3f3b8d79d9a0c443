"""A process that has imported TensorFlow and forks, for processes that tests start.

An import takes seconds, a fork milliseconds. The server imports modules, but runs no op
and so starts no thread: what it forks is as fresh as a process that has just imported
them. Forked processes are real ones, with ids of their own: they can be killed and
stopped. They differ from others in their command line, and in that they share the
order of hashes, as if ``PYTHONHASHSEED`` were set.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

MODULES = ("tensorflow", "keras", "replicator")
# Starts of names of variables that are read during an import, or may be.
_READ_AT_IMPORT = ("CUDA", "KERAS", "MKL", "OMP", "PYTHON", "TF_", "XLA")
# Read later: the cluster; Ray sets the debugger of its drivers, and a stock parameter
# server strategy what TensorFlow reads when it starts, in the process of the tests.
_READ_LATER = (
    "TF_CONFIG",
    "PYTHONBREAKPOINT",
    "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE",
    "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY",
)
_POLL_SEC = 0.01
_KILL_SEC = 10.0


class ForkedProcess:
    """A process of the server, with what ``subprocess.Popen`` has for it."""

    def __init__(self, server, pid):
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self):
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout):
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(_POLL_SEC)
        return code

    def send_signal(self, number):
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """The server, which ends with this process, and all that it forked with it."""

    def __init__(self, env):
        ours, theirs = socket.socketpair()
        with theirs:
            self.env = dict(env)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(os.getpid()), str(theirs.fileno())],
                env=self.env,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._channel = ours.makefile("rw", encoding="utf-8")
        ours.close()
        atexit.register(self._end)

    def fits(self, env):
        """Whether a process with these variables would have imported the same."""
        return _read_at_import(env) == _read_at_import(self.env)

    def start(self, argv, *, env, log):
        """Forks a process that runs a program of Python, in a session of its own."""
        log.touch()  # as Popen does: it can be read before the fork has come to it
        request = {
            "argv": list(argv),
            "env": dict(env),
            "log": str(log.absolute()),
            "folder": str(Path.cwd()),
        }
        return ForkedProcess(self, self.ask(request))

    def run(self, argv, *, env, log, timeout_sec):
        """Runs a program to its end; returns its exit code and what the log has."""
        process = self.start(argv, env=env, log=log)
        try:
            code = process.wait(timeout_sec)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(_KILL_SEC)
        return code, log.read_text(encoding="utf-8")

    def ask(self, request):
        self._channel.write(json.dumps(request) + "\n")
        self._channel.flush()
        answer = self._channel.readline()
        if not answer:
            raise RuntimeError(f"the server of forks ended: {self._process.poll()}")
        return json.loads(answer)

    def _end(self):
        self._process.kill()
        self._process.wait()


@functools.cache
def server(**settings):
    """The server of this process, by environment variables that it sets; made once."""
    return ForkServer({**os.environ, "PYTHONUNBUFFERED": "1", **settings})


def _read_at_import(env):
    return {
        name: value
        for name, value in env.items()
        if name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER
    }


def main():
    """Serves until its parent ends; in a forked process, runs what was requested."""
    from replicator.cluster import die_with_parent

    parent, fileno = map(int, sys.argv[1:])
    die_with_parent.request_death_signal()
    if os.getppid() != parent:
        return
    for name in MODULES:
        importlib.import_module(name)
    # Otherwise the first collection in a forked process would copy all objects.
    gc.collect()
    gc.freeze()
    own = os.getpid()
    request = _serve(socket.socket(fileno=fileno))
    if request is not None:
        die_with_parent.request_death_signal()
        if os.getppid() == own:
            _run(request)


def _serve(connection):
    """Answers until the other end is closed; in a forked process, returns its task."""
    with connection, connection.makefile("rw", encoding="utf-8") as channel:
        for line in channel:
            request = json.loads(line)
            answer = _poll(request["poll"]) if "poll" in request else _fork()
            if answer == 0 and "poll" not in request:
                return request
            channel.write(json.dumps(answer) + "\n")
            channel.flush()
    return None


def _poll(pid):
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _fork():
    """Returns once the process has a group that can be killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
    os.close(writer)
    if pid:
        os.read(reader, 1)
    os.close(reader)
    return pid


def _run(request):
    """Becomes a process as ``Popen`` starts it."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    random.seed()
    with contextlib.suppress(KeyError):
        sys.modules["numpy"].random.seed()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
