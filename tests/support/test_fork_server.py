"""Forked processes are like any others, but have imported TensorFlow already."""

import json
import os
import signal
import subprocess
from pathlib import Path

import case_cluster
import fork_server
import pytest

pytestmark = pytest.mark.processes

WAIT_SEC = 60.0
PROGRAM = """
import json, os, random, sys, time
from pathlib import Path

is_imported = "tensorflow" in sys.modules
import numpy as np
import tensorflow as tf
from tensorflow.python.client import device_lib
from tensorflow.python.eager import context

found = {
    "is_imported": is_imported,
    "is_fresh": context._context is None,
    "arguments": sys.argv[1:],
    "folders": [str(Path.cwd()), sys.path[0]],
    "variable": os.environ.get("OF_THE_FORK"),
    "is_leader": os.getpid() == os.getpgrp() == os.getsid(0),
    "drawn": [
        random.random(),
        np.random.random(),
        float(tf.random.uniform([])),
        device_lib.list_local_devices()[0].incarnation,
    ],
}
print(json.dumps(found), flush=True)
if "fail" in sys.argv:
    raise ValueError("as it was asked to")
if "wait" in sys.argv:
    time.sleep(600)
sys.exit(3)
"""


@pytest.fixture
def start(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    server = fork_server.server(**case_cluster.ENV)
    started = []

    def forked(*arguments, log="log", **variables):
        env = {**os.environ, **case_cluster.ENV, **variables}
        process = server.start([str(program), *arguments], env=env, log=tmp_path / log)
        started.append(process)
        return process

    yield forked
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_SEC)


def test_the_log_of_a_process_that_has_not_begun_is_empty(start, tmp_path):
    """Whoever waits for a line of it can read it from the start."""
    process = start("wait")
    assert (tmp_path / "log").is_file()
    assert process.poll() is None


def test_it_is_as_fresh_as_one_that_has_just_imported_tensorflow(start, tmp_path):
    """With arguments, folders, variables, a session and a log of its own."""
    process = start("a b", OF_THE_FORK="here")

    assert process.wait(WAIT_SEC) == 3 == process.returncode
    found = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert found["is_imported"]
    assert found["is_fresh"]
    assert ["a b"] == found["arguments"]
    assert [os.getcwd(), str(tmp_path)] == found["folders"]  # noqa: PTH109
    assert "here" == found["variable"]
    assert found["is_leader"]


def test_two_of_them_draw_different_numbers(start, tmp_path):
    """Of Python, NumPy and TensorFlow; the last ones distinguish servers."""
    drawn = []
    for log in ("first", "second"):
        start(log=log).wait(WAIT_SEC)
        text = (tmp_path / log).read_text()
        drawn.append(json.loads(text.splitlines()[-1])["drawn"])

    assert all(one != other for one, other in zip(*drawn, strict=True))


def test_an_exception_ends_it_as_any_program(start, tmp_path):
    """With code 1 and a traceback."""
    assert start("fail").wait(WAIT_SEC) == 1
    assert "ValueError: as it was asked to" in (tmp_path / "log").read_text()


def test_it_can_be_killed_by_its_id(start):
    """While it runs there is no code, and a wait is bounded."""
    process = start("wait")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    os.killpg(process.pid, signal.SIGTERM)

    assert process.wait(WAIT_SEC) == -signal.SIGTERM
    process.send_signal(signal.SIGTERM)  # nobody is left to get it


def test_a_program_that_takes_too_long_is_killed(tmp_path):
    """Nothing of it is left when the time limit is reported."""
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(
        "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.server(**case_cluster.ENV).run(
            [str(program)],
            env={**os.environ, **case_cluster.ENV},
            log=log,
            timeout_sec=1.0,
        )

    pid = int(log.read_text())
    assert not Path("/proc", str(pid)).exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"TF_CONFIG": "{}", "OF_A_PROGRAM": "1"}, True),
        ({"PYTHONBREAKPOINT": "ray.util.rpdb._driver_set_trace"}, True),
        ({"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"}, False),
        ({"PYTHONPATH": "/elsewhere"}, False),
    ],
)
def test_other_variables_of_an_import_do_not_fit(changes, expected):
    """Their process has to start anew."""
    server = fork_server.server(**case_cluster.ENV)
    env = server.env  # other tests may have changed that of this process since

    assert server.fits({**env, **changes}) is expected
