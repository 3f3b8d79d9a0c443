"""An elastic job under test: its supervisor, its hosts, and what its workers logged.

Hosts are loopback addresses of this machine, each with a memory folder of its own.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import elastic_trainer as trainer
import pandas as pd

TRAINER = trainer.__file__
SUPERVISOR = [sys.executable, "-m", "replicator.elastic"]


class Job:
    def __init__(self, folder, hosts, *options):
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
        program = [sys.executable, TRAINER, self.folder, str(num_steps), backend]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [*SUPERVISOR, *self._options, "--", *program],
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
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
