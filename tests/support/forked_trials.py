"""Trials with the fake worker that are forked, for tests that look at what they record.

Most of the time of a fake trial is the import of its records, which the server of forks
has imported. Tests that look for processes of a trial start them as users do.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import types
from pathlib import Path

import fork_server
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = "fake_worker"


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
    streams = reader, stdout.fileno(), stderr.fileno()
    pid = _server().fork([MODULE, *arguments], env, cwd, streams, MODULE)
    os.close(reader)
    return fork_server.ForkedProcess(_server(), pid, os.fdopen(writer, "wb"))


@functools.cache
def _server():
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'harness'}"
    return fork_server.ForkServer({**os.environ, "PYTHONPATH": paths}, (MODULE,))
