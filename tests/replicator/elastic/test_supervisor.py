"""The supervisor with programs without TensorFlow: what it says, starts and ends."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from damaging import until
from elastic_job import SUPERVISOR

pytestmark = pytest.mark.processes

# Fails on the host 127.0.0.3; elsewhere it fails later, as workers do then.
FAILS_ON_ONE_HOST = """
case "$REPLICATOR_ELASTIC" in
  *127.0.0.3*) echo "ValueError: bad disk"; exit 3;;
  *) if [ "$WORLD_SIZE" = 3 ]; then sleep 0.5; echo WorkerLostError; exit 1; fi;;
esac
"""
# Worker 1 hangs, and worker 0 says so.
HANGS = """
test $RANK = 1 && exec sleep 1000
echo "WorkerLostError: worker 0 (a:1) failed during b: worker 1 (c:2) did not respond"
exit 1
"""
SLEEPS = "sh", "-c", "echo pid $$; exec sleep 1000"
REFUSED = {
    "no program": ([], "Missing argument 'COMMAND...'"),
    "no time": (["--grace-sec", "nan", "--", "true"], "--grace-sec nan is no number;"),
    "fewer at most": (
        ["--min-workers", "3", "--max-workers", "2", "--", "true"],
        "--max-workers 2 is less than --min-workers 3",
    ),
    "no number": (
        ["--min-workers", "0", "--", "true"],
        "Invalid value for '--min-workers': 0 is not in the range",
    ),
    "no script": (["--discover", "./none.sh", "--", "true"], "No such file"),
    "failing script": (
        ["--discover", "sh -c 'echo no lease >&2; exit 4'", "--", "true"],
        "fails: no lease; pass a program that prints",
    ),
    "no host": (["--discover", "echo a b:2", "--", "true"], "prints 'a b:2'"),
    "a host twice": (["--discover", "printf 'a:1\\na:1'", "--", "true"], "'a:1'"),
    "no launcher": (["--launcher", "ssh {host}", "--", "true"], "no {command}"),
}


@pytest.fixture
def begin(tmp_path):
    """Starts supervisors, and kills what is left of them."""
    begun = []

    def begin(*arguments, **variables):
        output = tmp_path / f"output-{len(begun)}"
        with output.open("w") as file:
            process = subprocess.Popen(
                [*SUPERVISOR, "--memory-dir", str(tmp_path), *arguments],
                cwd=tmp_path,
                env={**os.environ, **variables},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        begun.append(process)
        return process, output

    yield begin
    for process in begun:
        process.kill()
        process.wait()


@pytest.fixture
def run(begin):
    """Runs a supervisor to its end; returns its exit code and output."""

    def run(*arguments, **variables):
        process, output = begin(*arguments, **variables)
        return process.wait(60), output.read_text()

    return run


def wait_for(path, text):
    until(lambda: text in path.read_text(), path.read_text)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_wrong_arguments_are_refused_in_one_line(run, name):
    arguments, message = REFUSED[name]
    code, output = run(*arguments)
    assert 1 == code
    (line,) = output.splitlines()
    assert line.startswith("[elastic] error: ")
    assert message in line


def test_a_program_that_always_fails_is_given_up(run):
    code, output = run("--max-restarts", "1", "--", "sh", "-c", "echo boom; exit 3")
    assert 1 == code
    assert 2 == output.count("[localhost/0] boom")
    assert 2 == output.count("worker localhost/0 exited with code 3: boom")
    assert "gave up after 1 restarts" in output.splitlines()[-1]


def test_a_host_whose_workers_fail_is_left_out(run):
    """The others fail as well, since they wait for it, and are not blamed."""
    hosts = "printf '127.0.0.2\\n127.0.0.3\\n127.0.0.4'"
    options = "--discover", hosts, "--min-workers", "2", "--max-workers", "3"
    code, output = run(*options, "--", "sh", "-c", FAILS_ON_ONE_HOST)
    assert 0 == code, output
    lines = output.splitlines()
    assert (
        "[elastic] worker 127.0.0.3/1 exited with code 3: ValueError: bad disk" in lines
    )
    assert "[elastic] starts 2 workers on 127.0.0.2, 127.0.0.4" == lines[-1]


def test_a_worker_that_hangs_is_left_out_at_once(run):
    begun = time.monotonic()
    options = "--min-workers", "2", "--max-restarts", "0"
    _, output = run(*options, "--", "sh", "-c", HANGS)
    assert "[elastic] worker localhost/1 does not respond" in output.splitlines()
    assert time.monotonic() - begun < 4  # and not after 5 s, as those that exit slowly


def test_it_waits_for_enough_workers_and_for_new_hosts(begin, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.2:1\n")
    process, output = begin(
        *("--discover", f"cat {hosts}", "--min-workers", "2", "--poll-sec", "0.1"),
        *("--max-workers", "3", "--", "sh", "-c", "sleep 1; test $WORLD_SIZE = 3"),
    )
    wait_for(output, "waits for 2 workers: there is room for 1")
    hosts.write_text("not a host\n")
    wait_for(output, "'not a host', which is not 'host:slots'")
    hosts.write_text("127.0.0.2:4\n")
    assert 0 == process.wait(30)
    assert "starts 3 workers on 127.0.0.2" in output.read_text()


def test_other_hosts_are_reached_by_the_launcher(run, tmp_path):
    """A launcher gets the host, and one command for a shell there."""
    launcher = tmp_path / "launch.sh"
    launcher.write_text('echo to "$1"; exec sh -c "$2"\n')
    code, output = run(
        *("--discover", "printf 'far-1:1\\nfar-2:1'", "--min-workers", "2"),
        *("--launcher", f"sh {launcher} {{host}} {{command}}", "--"),
        *("sh", "-c", 'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR, $(pwd)"'),
        TF_CONFIG="{}",
    )
    assert 0 == code, output
    for rank, host in enumerate(("far-1", "far-2")):
        assert f"[{host}/{rank}] to {host}" in output
        assert f"[{host}/{rank}] {rank} of 2 at far-1, {tmp_path}" in output


def test_a_supervisor_has_its_folder_alone_and_its_workers_end_with_it(begin, run):
    process, output = begin("--min-workers", "2", "--", *SLEEPS)
    wait_for(output, "[localhost/0] pid")
    wait_for(output, "[localhost/1] pid")
    code, refused = run("--", "true")
    assert 1 == code
    assert "another supervisor runs the job in --state-dir 'elastic-state'" in refused
    pids = re.findall(r" pid (\d+)", output.read_text())
    process.kill()
    until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids))
    assert "goes on with the job in --state-dir elastic-state" in run("--", "true")[1]


def test_a_stop_kills_workers_that_do_not_commit(begin):
    process, output = begin("--grace-sec", "0.2", "--", *SLEEPS)
    wait_for(output, "pid")
    process.terminate()
    assert 128 + signal.SIGTERM == process.wait(30)
    assert "] workers stop after the next commit" in output.read_text()
    assert "start again with --state-dir elastic-state" in output.read_text()
