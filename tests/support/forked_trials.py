"""Trials with the fake worker that are forked, for tests that look at what they record.

Most of the time of a fake trial is the import of its records. A server has imported
them, and forks. What it forks is a process with an id and a session of its own, which
can be killed; its command line and its environment, seen from outside, are those of
the server. Tests that look for processes of a trial start them as users do.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = "fake_worker"
_FOLDER = ROOT / "tests" / "harness"
_NUM_STREAMS = 3
_LONGEST_REQUEST = 2**20


class ForkedTrial:
    """A process of the server, with what the harness uses of ``subprocess.Popen``."""

    def __init__(self, pid, stdin):
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self):
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = _ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout=None):
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                found, _, _ = select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
            if not found:
                raise subprocess.TimeoutExpired(MODULE, timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code


@contextlib.contextmanager
def installed(command):
    """Forks trials of this process that have a command, while the block runs."""
    from harness.run import trial_tree

    def start(words, **options):
        if tuple(words[: len(command)]) != tuple(command):
            return subprocess.Popen(words, **options)
        return _fork(words[len(command) :], **options)

    with pytest.MonkeyPatch.context() as patch:
        names = vars(subprocess) | {"Popen": start}
        patch.setattr(trial_tree, "subprocess", types.SimpleNamespace(**names))
        yield


def _fork(arguments, *, stdin, stdout, stderr, env, cwd, start_new_session):
    assert (stdin, start_new_session) == (subprocess.PIPE, True)
    reader, writer = os.pipe()
    request = {"argv": [MODULE, *arguments], "env": env, "cwd": str(cwd)}
    pid = _ask(request, (reader, stdout.fileno(), stderr.fileno()))
    os.close(reader)
    return ForkedTrial(pid, os.fdopen(writer, "wb"))


@functools.cache
def _server():
    """Starts the server, which ends with this process, and all that it forked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(os.getpid()), str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{_FOLDER}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end():
        ours.close()
        process.kill()
        process.wait()

    atexit.register(end)
    return ours


def _ask(request, descriptors=()):
    sent = json.dumps(request).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    _server().sendmsg([sent], [rights] if descriptors else [])
    answer = _server().recv(_LONGEST_REQUEST)
    if not answer:
        raise RuntimeError("the server of forked trials ended")
    return json.loads(answer)


def main():
    """Serves until its parent ends; in a forked process, runs the trial."""
    from replicator.cluster import die_with_parent

    parent, fileno = map(int, sys.argv[1:])
    die_with_parent.request_death_signal()
    if os.getppid() != parent:
        return
    worker = importlib.import_module(MODULE)
    # Otherwise the first collection in a forked process would copy all objects.
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=fileno))
    if request is not None:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = request["argv"]
        sys.exit(worker.main())


def _serve(connection):
    """Answers until the other end is closed; in a forked process, returns its task."""
    with connection:
        while True:
            data, streams, _, _ = socket.recv_fds(
                connection, _LONGEST_REQUEST, _NUM_STREAMS
            )
            if not data:
                return None
            request = json.loads(data)
            if "poll" in request:
                ended, status = os.waitpid(request["poll"], os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if ended else None
            else:
                answer = _fork_with(streams)
                if answer == 0:
                    return request
            connection.send(json.dumps(answer).encode())


def _fork_with(streams):
    """Returns once the process has a session of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
    for descriptor in (writer, *streams):
        os.close(descriptor)
    if pid:
        os.read(reader, 1)
    os.close(reader)
    return pid


if __name__ == "__main__":
    main()
