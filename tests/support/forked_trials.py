"""Trials that are forked, for tests that look at what they record.

They are those with a fake worker, those of a user's program, and real ones. Most of the
time of one is the import of its records, which the server of forks has imported. Tests
that look for processes of a trial start them as users do.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import types
from pathlib import Path

import fork_server
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE, GATES = "fake_worker", "gate_worker"
PROGRAMS, REAL = "harness.command.worker", "harness.trial.worker"
LIGHT = (MODULE, GATES, PROGRAMS)


def command_of(module, folder):
    """Starts without ``site``: a quarter of the time of a trial."""
    paths = [*(path for path in sys.path if path.endswith("-packages")), str(folder)]
    code = f"import sys; sys.path += {paths!r}; import {module}; "
    return (sys.executable, "-S", "-c", f"{code}sys.exit({module}.main())")


@contextlib.contextmanager
def installed(command, module=MODULE):
    """Forks trials of a command, and those of programs; of gates, any revision's."""
    from harness.run import trial_runner, trial_tree

    modules = {tuple(command): module, trial_runner.COMMAND_WORKER: PROGRAMS}

    def start(words, **options):
        tree = options["env"].get("PYTHONPATH", "").partition(os.pathsep)[0]
        for first, name in modules.items():
            is_known = name == GATES or tree == str(ROOT)
            if tuple(words[: len(first)]) == first and is_known:
                options["env"] = {**options["env"], "FORKED_TRIAL_OF": tree}
                return _fork(name, words[len(first) :], **options)
        return psutil.Popen(words, **options)

    with pytest.MonkeyPatch.context() as patch:
        names = vars(psutil) | {"Popen": start}
        patch.setattr(trial_tree, "psutil", types.SimpleNamespace(**names))
        yield


def _fork(module, arguments, *, stdin, stdout, stderr, env, cwd, start_new_session):
    assert (stdin, start_new_session) == (subprocess.PIPE, True)
    reader, writer = os.pipe()
    streams = reader, stdout.fileno(), stderr.fileno()
    server = _server((*fork_server.MODULES, REAL) if module == REAL else LIGHT)
    pid = server.fork([module, *arguments], env, cwd, streams, module)
    os.close(reader)
    return fork_server.ForkedProcess(server, pid, os.fdopen(writer, "wb"))


@functools.cache
def _server(modules):
    folder = ROOT / "tests" / "harness"
    paths = os.pathsep.join(map(str, (ROOT, folder, folder / "judging")))
    return fork_server.ForkServer({**os.environ, "PYTHONPATH": paths}, modules)
