"""Too little memory: an answer or one line of a verb.

The verb runs in a fork of this process, whose address space may grow by some kilobytes
or megabytes only, so an allocation fails somewhere within it.
"""

import contextlib
import errno
import faulthandler
import hashlib
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import covering
import pytest
from command_words import smoke_sweep
from ended import finished_in

from harness.cli import exit_codes, running
from harness.cli import main as cli

SWEEP = smoke_sweep(
    "--replicas=1,2 --mode=weak --backends=in_graph --repeats=2 --no-match "
    "--budget=none --order=sequential --study=s"
)
VERBS = {
    "status": ("status", "s"),
    "report": ("report", "s", "--format=text"),
    "page": ("report", "s"),
    "verify": ("verify", "s"),
    "resume": ("sweep", "--study", "s"),
}
NUM_LIMITS = int(os.environ.get("MEMORY_LIMITS", "20" if covering.is_full() else "3"))
SIZES = (2**24, 2**20, 2**16, 2**12, 2**10, 2**9, 2**8, 2**7)
"""Of what is taken: large blocks, then what is left between them."""
MOST_BYTES = 2**25
"""By then each verb here has enough."""
SEED = 20_261_126
MOST_SEC = 60
DIED = (-signal.SIGSEGV, -signal.SIGABRT)
"""Python 3.11 ends like this where an allocation fails in ``sys.intern``, and libraries
of C++ where nobody catches it. Then too nothing is lost."""
LINE = re.compile(r"(.*\n)*error: [^\n]+\n")


@pytest.fixture(scope="module")
def measured(tmp_path_factory, overrides, quick_sweeps):
    root = tmp_path_factory.mktemp("measured")
    with quick_sweeps(root):
        assert exit_codes.OK == cli.main(SWEEP, run_overrides=overrides)
    return root


def take_all_but(num_bytes):
    """Lets the address space not grow, and uses what of it is free, but for a rest."""
    rest = [bytearray(num_bytes)]
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    taken = [None] * 2**20  # which need not grow
    place = 0
    for size in SIZES:
        with contextlib.suppress(MemoryError, IndexError):
            while True:
                taken[place] = bytes(size)
                place += 1
    rest.clear()
    return taken


def run_with(num_bytes, words, overrides, folder):
    """Returns code, stdout and stderr of a verb that may use so much more memory."""
    out, err = folder / "stdout", folder / "stderr"
    pid = os.fork()
    if pid == 0:
        code = 99
        faulthandler.disable()
        try:
            with out.open("w") as sys.stdout, err.open("w") as sys.stderr:
                taken = [] if num_bytes is None else take_all_but(num_bytes)
                code = cli.main(words, run_overrides=overrides)
                del taken
        finally:
            os._exit(code)
    deadline = time.monotonic() + MOST_SEC
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail(f"{words[0]} with {num_bytes} bytes did not end")
        time.sleep(0.01)
    status = ended[1]
    return os.waitstatus_to_exitcode(status), out.read_text(), err.read_text()


def digests(root):
    """What a study holds, but for its page and its locks."""
    return {
        str(path): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".lock" not in path.name and "report" not in path.parts
    }


# A fork of a process with threads may wait for a lock of theirs for ever.
@pytest.mark.processes
@pytest.mark.full
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_without_memory_says_so_in_one_line(
    verb, measured, overrides, forked_trials, tmp_path, monkeypatch
):
    """Nothing that was finished is lost, and with more memory it works."""
    runs = shutil.copytree(measured / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "_conclude", lambda _store, *, is_json: None)
    # What is imported once is imported here; then each fork has it.
    assert exit_codes.OK == cli.main(VERBS[verb], run_overrides=overrides)
    (lost, *_) = sorted((runs / "s" / "trials").iterdir())
    chance = random.Random(f"{SEED}{verb}")
    wrong, num_refused = [], 0
    want = None
    for _ in range(NUM_LIMITS):
        if verb == "resume":
            shutil.rmtree(lost, ignore_errors=True)
        before, finished = digests(runs), finished_in(runs / "s")
        num_bytes = int(2 ** chance.uniform(12, MOST_BYTES.bit_length() - 1))
        code, out, err = run_with(num_bytes, VERBS[verb], overrides, tmp_path)
        kept = finished_in(runs / "s")
        if verb != "resume":
            want = want or run_with(None, VERBS[verb], overrides, tmp_path)
            is_changed = before != digests(runs)
        else:
            want = (exit_codes.OK, out, err)
            is_changed = not finished.items() <= kept.items()
        is_refused = code == exit_codes.USAGE and LINE.fullmatch(err) is not None
        num_refused += is_refused
        is_dead = code in DIED
        if is_changed or not (is_refused or is_dead or (code, out) == want[:2]):
            wrong.append((num_bytes, code, is_changed, err[-400:]))

    assert [] == wrong
    assert num_refused > 0, "every limit was enough"
    assert exit_codes.OK == cli.main(VERBS[verb], run_overrides=overrides)


@pytest.mark.processes
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("FT_Render_Glyph failed with error 0x40: out of memory"),
    ],
)
@pytest.mark.parametrize("is_cause", [False, True])
def test_too_little_memory_is_told_whatever_error_a_library_makes_of_it(
    error, is_cause, monkeypatch, capsys
):
    def fail(**_):
        if is_cause:
            raise ImportError("a module of C") from error
        raise error

    monkeypatch.setattr(cli.cli, "main", lambda *_, **__: fail())

    assert exit_codes.USAGE == cli.main(("status", "s"))
    assert re.fullmatch(
        r"error: there is not enough memory for this; end other programs, or .*; what"
        r" was finished is kept, so run the same command again\n",
        capsys.readouterr().err,
    )


def test_an_error_that_is_its_own_cause_is_read_once(monkeypatch, capsys):
    """As one of a lost disk is that is raised again, instead of what it caused."""
    lost = OSError(errno.EIO, "Input/output error", "lock")
    other = ValueError("unreadable")
    other.__cause__, lost.__context__ = lost, other

    def fail(*_, **__):
        raise lost

    monkeypatch.setattr(cli.cli, "main", fail)

    assert exit_codes.USAGE == cli.main(("status", "s"))
    assert "error: cannot use 'lock': Input/output error" in capsys.readouterr().err
