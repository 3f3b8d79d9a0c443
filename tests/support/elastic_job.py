"""An elastic job under test: its supervisor, its hosts, and what its workers logged.

Hosts are loopback addresses of this machine, each with a memory folder of its own.
"""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import elastic_trainer as trainer

TRAINER = pathlib.Path(trainer.__file__)
SUPERVISOR = [sys.executable, "-m", "replicator.elastic"]


class Job:
    def __init__(self, folder, hosts, *, least=2, most=4, **options):
        self.folder, self.output = folder, folder / "output"
        self.state_dir = folder / "state"
        self.memory = folder / "memory"
        self.memory.mkdir(exist_ok=True)
        self.hosts_file = folder / "hosts"
        self.set_hosts(hosts)
        given = {
            "min-workers": least,
            "max-workers": most,
            "discover": f"cat {self.hosts_file}",
            "poll-sec": 0.2,
            "state-dir": self.state_dir,
            "memory-dir": self.memory,
            **options,
        }
        self._options = [str(w) for k, v in given.items() for w in (f"--{k}", v)]
        self._process = None

    def set_hosts(self, hosts):
        """What the discovery script prints from now on."""
        new = self.hosts_file.with_suffix(".new")
        new.write_text("".join(f"{host}:1\n" for host in hosts))
        new.replace(self.hosts_file)

    def start(self, num_steps, *, commit_every=5, per_replica=0, pause_sec=0.05):
        program = map(str, (self.folder, num_steps, commit_every, per_replica))
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(*SUPERVISOR, *self._options, "--"),
                    *(sys.executable, str(TRAINER), *program, str(pause_sec)),
                ],
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    @property
    def text(self):
        return self.output.read_text(errors="replace")

    def signal(self, number):
        self._process.send_signal(number)

    def wait(self, timeout_sec=150):
        return self._process.wait(timeout_sec)

    def is_running(self):
        return self._process.poll() is None

    def until(self, condition, timeout_sec=120):
        """Waits until something is true of the job, and returns it."""
        deadline = time.monotonic() + timeout_sec
        while not (found := condition()):
            assert time.monotonic() < deadline, self.text[-5000:]
            assert self.is_running(), self.text[-5000:]
            time.sleep(0.05)
        return found

    def pids(self, start):
        """Process of each worker of a start, by rank."""
        return {
            int(path.name.split("-")[2]): int(path.read_text() or 0)
            for path in self.folder.glob(f"pid-{start}-*")
        }

    def current(self):
        """The last start whose workers have trained; 0 before the first."""
        return max((record["start"] for record in self.records()), default=0)

    def is_after(self, start):
        return self.current() > start

    def until_steps(self, count):
        """Waits for so many more steps."""
        goal = count + max((r["step"] for r in self.records()), default=-1)
        self.until(lambda: any(r["step"] >= goal for r in self.records()))

    def places(self, start):
        """Host of each worker of a start, by rank."""
        lines = re.findall(r"starts \d+ workers on (.*)", self.text)
        return lines[start - 1].split(", ")

    def records(self):
        return trainer.records(self.folder)

    def lose_memory(self, host):
        for folder in self.memory.glob(f"*/{host}"):
            shutil.rmtree(folder, ignore_errors=True)


def counted_steps(records):
    """Of each step, the examples and the loss of the run of it that counts."""
    last = collections.defaultdict(int)
    for record in records:
        last[record["step"]] = max(last[record["step"]], record["start"])
    steps = collections.defaultdict(list)
    losses = {}
    for record in records:
        if record["start"] == last[record["step"]]:
            steps[record["step"]] += record["examples"]
            losses[record["step"]] = record["loss"]
    assert list(range(len(steps))) == sorted(steps)
    return [steps[n] for n in sorted(steps)], [losses[n] for n in sorted(losses)]


def check_epochs(steps):
    """No example of an epoch is used twice, so that each is used once."""
    read = [number for step in steps for number in step]
    for first in range(0, len(read), trainer.NUM_EXAMPLES):
        epoch = read[first : first + trainer.NUM_EXAMPLES]
        assert len(set(epoch)) == len(epoch)


def num_repeated(records):
    """Of each start but the first, how many steps it has run again."""
    spans = collections.defaultdict(set)
    for record in records:
        spans[record["start"]].add(record["step"])
    repeated, before = [], -1
    for start in sorted(spans):
        if before >= 0:
            repeated.append(max(before + 1 - min(spans[start]), 0))
        before = max(spans[start])
    return repeated


def stop(pid, *, hangs=False):
    """Kills a process, or lets it hang; whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP if hangs else signal.SIGKILL)
        return True
    return False
