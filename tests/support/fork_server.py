"""A process that has imported modules and forks, for processes that tests start.

An import takes seconds, a fork milliseconds. The server imports modules, but runs no op
and so starts no thread: what it forks is as fresh as a process that has just imported
them. Forked processes are real ones, with ids and sessions of their own: they can be
killed and stopped. Their command line and environment, seen from outside, are the
server's, and they share the order of hashes, as if ``PYTHONHASHSEED`` were set.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import psutil

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
_KILL_SEC = 10.0
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_NUM_STREAMS = 3
_LONGEST_REQUEST = 2**20


class ForkedProcess:
    """A process of the server, with what ``psutil.Popen`` has for it."""

    def __init__(self, server, pid, stdin=None):
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._server = server

    def poll(self):
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout=None):
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                found, _, _ = select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
            if not found:
                raise psutil.TimeoutExpired(timeout, self.pid)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number):
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """The server, which ends with this process, and all that it forked with it."""

    def __init__(self, env, modules=MODULES):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = str(os.getpid()), str(theirs.fileno())
        with theirs:
            self.env = dict(env)
            self._process = subprocess.Popen(
                [sys.executable, __file__, *own, *modules],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._is_asked = threading.Lock()
        atexit.register(self._end)

    def fits(self, env):
        """Whether a process with these variables would have imported the same."""
        return _read_at_import(env) == _read_at_import(self.env)

    def start(self, argv, *, env, log):
        """Forks a process that runs a program of Python, in a session of its own."""
        with log.open("ab") as output, Path(os.devnull).open("rb") as nothing:
            streams = [of.fileno() for of in (nothing, output, output)]
            return ForkedProcess(self, self.fork(argv, env, Path.cwd(), streams))

    def fork(self, argv, env, folder, streams, module=""):
        """Forks a process with three streams, of a program or a module; its id."""
        request = {"argv": list(argv), "env": dict(env), "folder": str(folder)}
        return self.ask({**request, "module": module}, streams)

    def run(self, argv, *, env, log, timeout_sec):
        """Runs a program to its end; returns its exit code and what the log has."""
        process = self.start(argv, env=env, log=log)
        try:
            code = process.wait(timeout_sec)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(_KILL_SEC)
        return code, log.read_text(encoding="utf-8")

    def ask(self, request, streams=()):
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
        data = json.dumps(request).encode()
        with self._is_asked:
            self._socket.sendmsg([data], [rights][: len(streams)])
            answer = self._socket.recv(_LONGEST_REQUEST)
        if not answer:
            raise RuntimeError(f"the server of forks ended: {self._process.poll()}")
        return json.loads(answer)

    def _end(self):
        self._socket.close()
        self._process.kill()
        self._process.wait()


@functools.cache
def server(**settings):
    """The server of this process, by environment variables that it sets; made once."""
    return ForkServer({**os.environ, "PYTHONUNBUFFERED": "1", **settings})


# A program of Python in place of its own process: it has the server fork one, which
# ends with it, and ends as that does.
_STAND_IN = """
import json, os, socket, sys
words, env = sys.argv[2:], dict(os.environ)
request = json.dumps({"argv": words, "env": env, "folder": os.getcwd()})
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [request.encode()], [0, 1, 2])
    code = json.loads(server.recv(100))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextlib.contextmanager
def standing_in(server, folder):
    """The words to start in place of Python, for programs that start processes."""
    path = str(Path(folder) / "server")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        accepting = threading.Thread(
            target=_accept, args=(listening, server), daemon=True
        )
        accepting.start()
        yield [sys.executable, "-S", "-E", "-c", _STAND_IN, path]
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join()


def _accept(listening, server):
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            args = connection, server
            threading.Thread(target=_stand_in, args=args, daemon=True).start()


def _stand_in(connection, server):
    with connection:
        data, streams, _, _ = socket.recv_fds(
            connection, _LONGEST_REQUEST, _NUM_STREAMS
        )
        process = ForkedProcess(
            server, server.fork(streams=streams, **json.loads(data))
        )
        for descriptor in streams:
            os.close(descriptor)
        ended = os.pidfd_open(process.pid)
        select.select([ended, connection], [], [])
        os.close(ended)
        process.send_signal(signal.SIGKILL)  # unless it has ended by itself
        code = process.wait(_KILL_SEC)
        with contextlib.suppress(OSError):
            connection.send(json.dumps(code).encode())


def _read_at_import(env):
    return {
        name: value
        for name, value in env.items()
        if name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER
    }


def _request_death_signal():
    """Ends this process with its parent; imports nothing that a program is without."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main():
    """Serves until its parent ends; in a forked process, runs what was requested."""
    parent, fileno = map(int, sys.argv[1:3])
    _request_death_signal()
    if os.getppid() != parent:
        return
    for name in sys.argv[3:]:
        importlib.import_module(name)
    # Otherwise the first collection in a forked process would copy all objects.
    gc.collect()
    gc.freeze()
    own = os.getpid()
    request = _serve(socket.socket(fileno=fileno))
    if request is not None:
        _request_death_signal()
        if os.getppid() == own:
            _run(request)


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
                answer = _fork(streams)
                if answer == 0:
                    return request
            connection.send(json.dumps(answer).encode())


def _fork(streams):
    """Returns once the process has a session that can be killed."""
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


def _run(request):
    """Becomes a process as ``Popen`` starts it."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    if request["module"]:
        module, _, function = request["module"].partition(":")
        main_of = getattr(sys.modules[module], function or "main")
        takes_words = bool(inspect.signature(main_of).parameters)
        sys.exit(main_of(*[sys.argv[1:]] * takes_words))
    sys.path[0] = str(Path(sys.argv[0]).parent)
    random.seed()
    with contextlib.suppress(KeyError):
        sys.modules["numpy"].random.seed()
    runpy.run_path(sys.argv[0], run_name="__main__")


# Trials that are forked, for tests that look at what they record: those with a fake
# worker, those of a user's program, and real ones. Most of the time of one is the
# import of its records, which the server has imported. Tests that look for processes of
# a trial start them as users do.
ROOT = Path(__file__).resolve().parents[2]
MODULE, GATES = "fake_worker", "fake_worker:gate"
PROGRAMS, REAL = "harness.command.worker", "harness.trial.worker"
LIGHT = (MODULE, PROGRAMS)
WORKER = (sys.executable, "-m", REAL)


@contextlib.contextmanager
def installed(command=WORKER, module=MODULE):
    """Forks trials of a command, and those of programs; of gates, any revision's."""
    modules = {tuple(command): module, (*WORKER[:2], PROGRAMS): PROGRAMS}
    _server_for(module)  # here: it would end with a thread that started it
    popen = psutil.Popen

    def start(words, **options):
        tree = options.get("env", {}).get("PYTHONPATH", "").partition(os.pathsep)[0]
        for first, name in modules.items():
            is_known = name == GATES or tree == str(ROOT)
            if tuple(words[: len(first)]) == first and is_known:
                options["env"] = {**options["env"], "FORKED_TRIAL_OF": tree}
                return _fork_trial(name, words[len(first) :], **options)
        return popen(words, **options)

    with mock.patch.object(psutil, "Popen", start):
        yield


def _fork_trial(
    module, arguments, *, stdin, stdout, stderr, env, cwd, start_new_session
):
    assert (stdin, start_new_session) == (subprocess.PIPE, True)
    reader, writer = os.pipe()
    streams = reader, stdout.fileno(), stderr.fileno()
    server = _server_for(module)
    pid = server.fork([module, *arguments], env, cwd, streams, module)
    os.close(reader)
    return ForkedProcess(server, pid, os.fdopen(writer, "wb"))


def _server_for(module):
    return _server((*MODULES, REAL) if module == REAL else LIGHT)


@functools.cache
def _server(modules):
    folder = ROOT / "tests" / "harness"
    paths = os.pathsep.join(map(str, (ROOT, folder)))
    return ForkServer({**os.environ, "PYTHONPATH": paths}, modules)


if __name__ == "__main__":
    main()
