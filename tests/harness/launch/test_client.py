"""The program of an engine, such as ``srun``: started, watched, and ended in time."""

import os
import signal
import sys
import time

import pytest

from harness.errors import LaunchError
from harness.launch.client import ClientEngine

LONGEST_SEC = 30.0


def client(trial_dir, code, **options):
    return ClientEngine(
        (sys.executable, "-S", "-c", code),
        trial_dir=trial_dir,
        variables={},
        log="client.log",
        hint="install it",
        **{"end_by_itself_sec": LONGEST_SEC, **options},
    )


def wait_for_line(engine):
    end = time.monotonic() + LONGEST_SEC
    while not engine.output():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.processes
def test_a_client_that_reads_ends_when_it_is_to_end(tmp_path):
    """It reads its message, and then the end of its standard input."""
    code = "import sys; print(sys.stdin.readline(), flush=True); sys.stdin.read()"
    engine = client(tmp_path, code, message=b"gang\n")
    wait_for_line(engine)

    assert engine.poll() is None
    engine.cancel()
    assert 0 == engine.poll()
    assert "gang" == engine.output().strip()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("on_sigterm", "code"), [("SIG_DFL", -signal.SIGTERM), ("SIG_IGN", -signal.SIGKILL)]
)
def test_a_client_that_does_not_end_is_killed(tmp_path, on_sigterm, code):
    """By a signal that it can act on; then by one that it cannot."""
    program = (
        f"import signal, time; signal.signal(signal.SIGTERM, signal.{on_sigterm});"
        " print('ready', flush=True); time.sleep(60)"
    )
    engine = client(tmp_path, program, end_by_itself_sec=0.2)
    wait_for_line(engine)
    engine.cancel()
    engine.cancel()

    assert code == engine.poll()


def test_a_client_that_cannot_be_run_is_refused(tmp_path):
    with pytest.raises(LaunchError, match=r"cannot run /no/srun: No such .*; install"):
        ClientEngine(
            ("/no/srun",),
            trial_dir=tmp_path,
            variables=os.environ,
            log="client.log",
            hint="install it",
            end_by_itself_sec=1.0,
        )
