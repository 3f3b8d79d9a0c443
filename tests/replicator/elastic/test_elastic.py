"""Elastic jobs: faults, the supervisor, and the state that outlives them."""

import contextlib
import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import case_cluster
import covering
import fork_server
import keras
import numpy as np
import pandas as pd
import programs as trainer
import pytest
import tensorflow as tf
from damaging import until

import replicator
from replicator import CheckpointError, ElasticError, SplitBatchError

NUM_FAULTS = int(os.environ.get("ELASTIC_FAULTS", "0"))
FAULTS = ["kill", "kill", "kill the chief", "hang", "go", "come"]

pytestmark = pytest.mark.processes

SUPERVISOR = [sys.executable, "-m", "replicator.elastic"]


class Job:
    """A job, its hosts, and what its workers logged.

    Hosts are loopback addresses of this machine, each with a memory folder of its own.
    """

    def __init__(self, folder, hosts, *options, python=(sys.executable,)):
        self._python = python
        self.folder, self._output = folder, folder / "output"
        self.memory, self._hosts = folder / "memory", folder / "hosts"
        self.memory.mkdir(exist_ok=True)
        self.set_hosts(hosts)
        self._options = [
            *("--discover", f"cat {self._hosts}", "--memory-dir", self.memory),
            *("--state-dir", folder / "state", "--poll-sec", "0.2"),
            *("--min-workers", "2", "--max-workers", "4", *options),
        ]

    def set_hosts(self, hosts):
        """What the discovery script prints from now on."""
        new = self._hosts.with_suffix(".new")
        new.write_text("".join(f"{host}:1\n" for host in hosts))
        new.replace(self._hosts)

    def start(self, num_steps, backend="multi_worker"):
        program = [*self._python, trainer.__file__, "train_elastically"]
        program += [self.folder, str(num_steps), backend]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [*SUPERVISOR, *self._options, "--", *program],
                env={**os.environ, **case_cluster.ENV},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    @property
    def text(self):
        return self._output.read_text(errors="replace")

    def stop(self):
        """Stops it as Slurm does; returns the exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def _until(self, condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, self.text[-5000:]
            assert self.process.poll() is None, self.text[-5000:]
            time.sleep(0.05)

    def pids(self, start):
        """Process of each worker of a start, by rank."""
        files = sorted(self.folder.glob(f"pid-{start}-*"))
        return [int(file.read_text()) for file in files]

    def current(self):
        """The last start whose workers have trained; 0 before the first."""
        return max((record["start"] for record in self.records()), default=0)

    def until_after(self, start):
        """Waits until the workers of a later start have trained."""
        self._until(lambda: self.current() > start)

    def until_steps(self, count):
        """Waits for so many more steps."""
        goal = self.last_step() + count
        self._until(lambda: self.last_step() >= goal)

    def last_step(self):
        return max((record["step"] for record in self.records()), default=-1)

    def places(self, start):
        """Host of each worker of a start, by rank."""
        starts = re.findall(r"starts \d+ workers on (.*)", self.text)
        return starts[start - 1].split(", ")

    def records(self):
        return trainer.records(self.folder)

    def lose_memory(self, host):
        for folder in self.memory.glob(f"*/{host}"):
            shutil.rmtree(folder, ignore_errors=True)


def counted_steps(records):
    """Of each step, the examples and the loss of the run of it that counts."""
    frame = pd.DataFrame(records)
    frame = frame[frame.start == frame.groupby("step").start.transform("max")]
    by_step = frame.groupby("step")
    steps, losses = by_step.examples.sum(), by_step.loss.last()
    assert list(range(len(steps))) == list(steps.index)
    return list(steps), list(losses)


def check_epochs(steps):
    """No example of an epoch is used twice, so that each is used once."""
    read = [number for step in steps for number in step]
    for first in range(0, len(read), trainer.NUM_EXAMPLES):
        epoch = read[first : first + trainer.NUM_EXAMPLES]
        assert len(set(epoch)) == len(epoch)


def num_repeated(records):
    """Of each start but the first, how many steps it has run again."""
    spans = pd.DataFrame(records).groupby("start").step.agg(["min", "max"])
    return (spans["max"].shift() + 1 - spans["min"]).dropna().clip(lower=0).tolist()


def stop(pid, *, hangs=False):
    """Kills a process, or lets it hang; whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP if hangs else signal.SIGKILL)
        return True
    return False


def check_as_undisturbed(job, num_steps):
    """Each example of each epoch once, and the losses and weights of one replica."""
    folder = job.folder / "undisturbed"
    folder.mkdir()
    weights = trainer.train(replicator.create("single"), folder, num_steps)
    steps, losses = counted_steps(job.records())
    assert num_steps == len(steps)
    check_epochs(steps)
    expected = [json.loads(line) for line in (folder / "log-0-0").open()]
    np.testing.assert_allclose([r["loss"] for r in expected], losses, rtol=1e-4)
    found = json.loads((job.folder / "weights.json").read_text())
    for want, value in zip(weights, found, strict=True):
        np.testing.assert_allclose(want, value, rtol=1e-4, atol=1e-6)


@pytest.fixture
def python(tmp_path):
    """What starts a program of Python: forks of a process that has imported it."""
    if covering.is_full():
        return (yield [sys.executable])
    server = fork_server.server(**case_cluster.ENV)
    with fork_server.standing_in(server, tmp_path) as words:
        yield words


def test_a_job_outlives_its_chief_and_its_supervisor(tmp_path, python):
    """The chief is killed, the supervisor is stopped; three workers finish."""
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    options = "--cooldown-sec", "0"
    with Job(tmp_path, hosts[:2], *options, python=python).start(100) as job:
        job.until_steps(12)
        stop(job.pids(1)[0])
        job.until_after(1)
        job.until_steps(7)
        assert 128 + signal.SIGTERM == job.stop()
    assert "127.0.0.2/0 was killed by SIGKILL" in job.text
    assert not [path for path in job.memory.rglob("*") if path.is_file()]
    job.set_hosts(hosts)
    with job.start(40):
        assert 0 == job.process.wait(150), job.text
    assert "starts 3 workers on 127.0.0.2, 127.0.0.3, 127.0.0.4" in job.text
    after_kill, after_stop = num_repeated(job.records())
    assert 0 < after_kill <= 5
    assert 0 == after_stop
    check_as_undisturbed(job, 40)


@pytest.mark.full
def test_one_program_with_served_workers_goes_on(tmp_path):
    hosts = ["127.0.0.2", "127.0.0.3"]
    job = Job(tmp_path, hosts, "--served", "--cooldown-sec", "0")
    with job.start(25, "multi_worker_in_graph"):
        job.until_steps(7)
        stop(job.pids(1)[0])
        assert 0 == job.process.wait(150), job.text
    assert max(num_repeated(job.records())) <= 5
    check_as_undisturbed(job, 25)


@pytest.mark.skipif(not NUM_FAULTS, reason="takes 15 s for each of ELASTIC_FAULTS")
def test_faults_at_random_lose_nothing(tmp_path):
    """Four of five hosts train: workers are killed or hang, hosts go and come back."""
    draw = random.Random(int(os.environ.get("ELASTIC_SEED", "1")))
    hosts = [f"127.0.0.{number}" for number in range(2, 7)]
    listed, waits = hosts[:4], []
    options = "--cooldown-sec", "1", "--max-restarts", "1000"
    with Job(tmp_path, listed, *options).start(10**6) as job:
        while len(waits) < NUM_FAULTS:
            job.until_steps(1 + draw.randrange(12))
            start = job.current()
            pids, places = job.pids(start), job.places(start)
            rank = draw.randrange(len(pids))
            fault = draw.choice(FAULTS)
            if fault == "come":
                absent = [host for host in hosts if host not in listed]
                if not absent or len(places) == 4:
                    continue  # there is no room for another one
                listed.append(draw.choice(absent))
            elif fault == "go" and len(listed) > 2:
                listed.remove(places[rank])
            elif fault == "kill the chief":
                rank = 0
            job.set_hosts(listed)
            since = time.monotonic()
            if fault != "come" and not stop(pids[rank], hangs=fault == "hang"):
                continue  # all workers are being started again just now
            if fault == "go":
                job.lose_memory(places[rank])
            job.until_after(start)
            waits.append((fault, round(time.monotonic() - since, 1)))
        assert 128 + signal.SIGTERM == job.stop()
    num_steps = job.last_step() + 20
    with job.start(num_steps):
        assert 0 == job.process.wait(150), job.text
    repeated = num_repeated(job.records())
    sys.stderr.write(f"{waits=} {repeated=} {num_steps=}\n")
    assert max(repeated) <= 5
    check_as_undisturbed(job, num_steps)


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
def begin_job(tmp_path):
    """Starts supervisors, and kills what is left of them."""
    begun = []

    def begin_job(*arguments, **variables):
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

    yield begin_job
    for process in begun:
        process.kill()
        process.wait()


@pytest.fixture
def run(begin_job):
    """Runs a supervisor to its end; returns its exit code and output."""

    def run(*arguments, **variables):
        process, output = begin_job(*arguments, **variables)
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


def test_it_waits_for_enough_workers_and_for_new_hosts(begin_job, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.2:1\n")
    process, output = begin_job(
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


def test_a_supervisor_has_its_folder_alone_and_its_workers_end_with_it(begin_job, run):
    process, output = begin_job("--min-workers", "2", "--", *SLEEPS)
    wait_for(output, "[localhost/0] pid")
    wait_for(output, "[localhost/1] pid")
    code, refused = run("--", "true")
    assert 1 == code
    assert "another supervisor runs the job in --state-dir 'elastic-state'" in refused
    pids = re.findall(r" pid (\d+)", output.read_text())
    process.kill()
    until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids))
    assert "goes on with the job in --state-dir elastic-state" in run("--", "true")[1]


def test_a_stop_kills_workers_that_do_not_commit(begin_job):
    process, output = begin_job("--grace-sec", "0.2", "--", *SLEEPS)
    wait_for(output, "pid")
    process.terminate()
    assert 128 + signal.SIGTERM == process.wait(30)
    assert "] workers stop after the next commit" in output.read_text()
    assert "start again with --state-dir elastic-state" in output.read_text()


STARTS = (4, 4), (3, 7), (2, 20), (3, 40)  # replicas, and steps of the whole job


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Makes this process a worker of a start, as the supervisor does."""

    def begin(start, host="a", disk_every=10):
        job = {
            "disk": str(tmp_path / "disk"),
            "disk_every": disk_every,
            "is_first_of_host": True,
            "memory": str(tmp_path / "memory" / host),
            "num_hosts": 1,
            "start": start,
            "stop_file": str(tmp_path / f"stop-{start}"),
        }
        monkeypatch.setenv("REPLICATOR_ELASTIC", json.dumps(job))

    return begin


def test_batches_of_replicas_stay_and_no_example_is_lost(begin, tmp_path):
    """4 replicas, then 3, 2 and 3: the first step of each is what the others left."""
    for start, (num_replicas, num_steps) in enumerate(STARTS, 1):
        begin(start)
        repl = replicator.create("in_graph", num_replicas=num_replicas)
        trainer.train(repl, tmp_path, num_steps, commit_every=1, per_replica=2)
    records = trainer.records(tmp_path)
    steps, losses = counted_steps(records)
    check_epochs(steps)
    sizes = [len(step) for step in steps]
    assert [8] * 4 + [4, 6, 6] + [4] * 13 + [2] + [6] * 19 == sizes
    assert np.isfinite(losses).all()
    rates = {r["start"]: r["rate"] for r in records}
    np.testing.assert_allclose([0.02, 0.015, 0.01, 0.015], list(rates.values()), 1e-6)


def test_a_stop_commits_to_disk_for_hosts_that_are_new(begin, tmp_path):
    begin(1, disk_every=100)
    (tmp_path / "stop-1").touch()
    with pytest.raises(SystemExit) as stopped:
        trainer.train(replicator.create("in_graph", num_replicas=2), tmp_path, 100)
    assert 75 == stopped.value.code
    begin(2, host="b")
    trainer.train(replicator.create("in_graph", num_replicas=3), tmp_path, 9)
    steps, _ = counted_steps(trainer.records(tmp_path))
    assert 9 == len(steps)
    check_epochs(steps)


def test_the_newest_commit_counts_wherever_it_is(begin, tmp_path):
    """Memory is ahead of the disk; the disk is ahead of what a lost host kept."""
    repl = replicator.create("in_graph", num_replicas=2)
    begin(1, disk_every=3)
    with pytest.raises(AssertionError):
        trainer.train(repl, tmp_path, 100, commit_every=2, lost_at=7)
    shutil.copytree(tmp_path / "memory" / "a", tmp_path / "memory" / "b")
    begin(2)
    trainer.train(repl, tmp_path, 11, commit_every=2)
    begin(3, host="b")
    trainer.train(repl, tmp_path, 13, commit_every=2)
    begun = {r["start"]: r["step"] for r in reversed(trainer.records(tmp_path))}
    assert {1: 0, 2: 6, 3: 11} == begun


@pytest.mark.parametrize("kept", [0, 7, 8, 1000])
def test_a_commit_that_was_cut_off_does_not_count(begin, tmp_path, kept):
    """The newest of the two files has no key, or is not complete: the other counts."""
    repl = replicator.create("in_graph", num_replicas=2)
    begin(1, disk_every=100)
    with pytest.raises(AssertionError):
        trainer.train(repl, tmp_path, 100, commit_every=2, lost_at=5)
    files = sorted((tmp_path / "memory" / "a").iterdir(), key=os.path.getmtime)
    shutil.rmtree(tmp_path / "disk")
    content = bytes(8) + files[-1].read_bytes()[8:]
    files[-1].write_bytes(content[:kept])
    begin(2)
    trainer.train(repl, tmp_path, 5)
    assert 2 == min(r["step"] for r in trainer.records(tmp_path) if r["start"] == 2)


def test_a_disk_that_cannot_be_written_ends_training_at_the_next_commit(
    begin, tmp_path
):
    begin(1)
    (tmp_path / "disk").touch()
    with pytest.raises(CheckpointError, match="could not be copied"):
        trainer.train(replicator.create("single"), tmp_path, 9, commit_every=2)
    assert [0, 1, 2, 3] == [record["step"] for record in trainer.records(tmp_path)]


def test_full_memory_ends_training_and_the_commit_before_counts(
    begin, tmp_path, monkeypatch, capsys
):
    """There is room for the first of the two files."""
    repl = replicator.create("single")
    begin(1)
    allocate, second = os.posix_fallocate, tmp_path / "memory" / "a" / "1"

    def allocate_one(descriptor, start, size):
        if Path(f"/proc/self/fd/{descriptor}").readlink() == second:
            raise OSError(errno.ENOSPC, "memory is full")
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate_one)
    with pytest.raises(CheckpointError, match=r"could not be written.*memory is full"):
        trainer.train(repl, tmp_path, 9, commit_every=2)
    begin(2)
    trainer.train(repl, tmp_path, 0)
    assert "continues at step 2;" in capsys.readouterr().out


@pytest.mark.parametrize("is_text", [False, True])
def test_variables_of_any_type_are_committed_or_refused(begin, is_text):
    """An empty one and a scalar among them; texts have no bytes to keep."""
    dtypes = tf.bfloat16, tf.bool, tf.complex64, tf.float16, tf.int8, tf.uint64
    values = [tf.cast([[0, 1, 1]], dtype) for dtype in dtypes]
    values += [tf.zeros([0, 3]), tf.constant(7.0), tf.constant(["a"])][: 2 + is_text]

    def state_of(values):
        variables = {f"v{index}": tf.Variable(v) for index, v in enumerate(values)}
        return replicator.ElasticState(replicator.create("single"), **variables), [
            variables[name] for name in sorted(variables)
        ]

    begin(1, disk_every=100)
    state, _ = state_of(values)
    state.step = 5
    if is_text:
        with pytest.raises(CheckpointError, match="could not be written"):
            state.commit(to_disk=True)
        return
    state.commit(to_disk=True)
    begin(2, host="b")
    state, found = state_of([tf.zeros_like(value) for value in values])
    assert 5 == state.step
    for value, variable in zip(values, found, strict=True):
        np.testing.assert_array_equal(value.numpy(), variable.numpy())


def test_what_is_no_variable_is_refused(begin):
    begin(1)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    state = replicator.ElasticState(replicator.create("single"), table=table)
    state.step = 1
    with pytest.raises(CheckpointError, match="variables only, but 'table' is none"):
        state.commit()


def test_a_schedule_and_other_batches_are_refused(begin, tmp_path):
    repl = replicator.create("in_graph", num_replicas=2)
    begin(1)
    trainer.train(repl, tmp_path, 2, per_replica=2)
    begin(2)
    with pytest.raises(ElasticError, match=r"had 4 examples .* and has 8 now"):
        trainer.train(repl, tmp_path, 4)
    with repl.context():
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(schedule))
    with pytest.raises(ElasticError, match="and not a schedule"):
        replicator.ElasticState(
            repl,
            batches="keep_per_replica",
            scale_learning_rate="sqrt",
            optimizer=optimizer,
        )


def test_uneven_parts_differ_by_one_example_at_most():
    repl = replicator.create("in_graph", num_replicas=3)
    data = tf.data.Dataset.range(20)
    with pytest.raises(SplitBatchError, match="not divisible"):
        repl.make_input_iterator(lambda c: replicator.split_global_batches(data, c, 8))
    inputs = repl.make_input_iterator(
        lambda ctx: replicator.split_global_batches(data, ctx, 8, uneven=True)
    )
    parts = [[len(part) for part in batch] for batch in inputs]
    assert [[2, 3, 3], [2, 3, 3], [1, 1, 2]] == parts
