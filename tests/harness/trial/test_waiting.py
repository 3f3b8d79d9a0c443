"""The end of a process is seen at once, within a time limit, and on any kernel."""

import os
import signal
import subprocess
import time

import pytest

from harness.trial import waiting

LONG_SEC = 60.0
FOREVER = 1e9


@pytest.fixture(params=["descriptor", "no descriptor", "refused"])
def start(request, monkeypatch):
    """Starts a shell, on kernels with and without descriptors of processes."""

    def refuse(_pid):
        raise OSError("not supported")

    if request.param == "no descriptor":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif request.param == "refused":
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    return lambda text: subprocess.Popen(["/bin/sh", "-c", text])


@pytest.mark.parametrize("timeout_sec", [LONG_SEC, FOREVER])
def test_the_exit_code_is_returned(start, timeout_sec):
    """Also if the process has ended before, and with a limit of many years."""
    process = start("sleep 0.1; exit 3")

    assert 3 == waiting.wait(process, timeout_sec) == process.returncode
    assert 3 == waiting.wait(process, timeout_sec)


def test_a_signal_is_negative(start):
    """As of Popen."""
    process = start("kill -TERM $$")

    assert -signal.SIGTERM == waiting.wait(process, LONG_SEC)


def test_a_process_that_runs_on_is_a_timeout(start):
    """It is left running, after the time and not before."""
    process = start("exec sleep 60")
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(process, 0.2)

    assert time.monotonic() - begin >= 0.2
    assert process.poll() is None
    process.kill()
    assert -signal.SIGKILL == waiting.wait(process, LONG_SEC)


def test_an_interrupt_ends_the_wait(start):
    """A signal handler that raises is not put off until the process ends."""
    process = start("exec sleep 60")

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            waiting.wait(process, LONG_SEC)
    finally:
        signal.signal(signal.SIGALRM, before)
        process.kill()
        process.wait()
