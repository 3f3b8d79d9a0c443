"""Runs the cases of a module in the processes of a real cluster; results by case.

``cluster_member.py`` is what every process runs, and says what a module of cases has.
"""

import contextlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from unittest import mock

import covering
import fork_server
import pytest
from cluster_member import ResultFolder

from replicator.cluster.local_cluster import LocalCluster

PROGRAM = Path(__file__).with_name("cluster_member.py")
CASE_TIMEOUT_SEC = 600.0
ENV = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
_POLL_SEC = 0.05
_NUM_LAST_CHARACTERS = 3000


class ForkedCluster(LocalCluster):
    """Its processes are forked from one that has imported TensorFlow."""

    def _start(self, member):
        kind, index = member
        own = {"type": kind, "index": index}
        env = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            **self._env,
            "TF_CONFIG": json.dumps({"cluster": self.addresses, "task": own}),
        }
        server = fork_server.server(**ENV)
        if not server.fits(env):
            super()._start(member)
            return
        self._processes[member] = server.start(
            self._argv[1:], env=env, log=self._log(kind, index)
        )


class CaseCluster:
    """A cluster that runs cases, and their results as soon as they are there."""

    def __init__(self, cluster, results, runners, case_timeout_sec):
        self.cluster = cluster
        self.results = results
        self.runners = tuple(runners)
        self._case_timeout_sec = case_timeout_sec

    def outcome(self, case, process=0):
        """What came of a case in the process of a number; waits for it."""
        self.wait_until(lambda: self.results.has(case, process), case, process)
        return self.results.read(case, process)

    def value(self, case, process=0):
        """What a case returned; fails with what it raised."""
        outcome = self.outcome(case, process)
        if outcome.error:
            pytest.fail(f"{case} in process {process}:\n{outcome.trace}")
        return outcome.value

    def values(self, case):
        """What a case returned in every process that runs cases."""
        return [self.value(case, process) for process in range(len(self.runners))]

    def error(self, case, process=0):
        outcome = self.outcome(case, process)
        if not outcome.error:
            pytest.fail(f"{case} raised nothing, but returned {outcome.value!r}")
        return outcome.error

    def wait_until(self, condition, what, process=0):
        """Waits as long as a case may take; fails at the end of the process, too."""
        deadline = time.monotonic() + self._case_timeout_sec
        while not condition():
            is_running = self.cluster.is_running(*self.runners[process])
            if not is_running and not condition():
                pytest.fail(
                    f"process {process} ended before {what}\n{self.cluster.tails()}"
                )
            if time.monotonic() > deadline:
                pytest.fail(f"{what} took too long\n{self.cluster.tails()}")
            time.sleep(_POLL_SEC)

    def ends_well(self, timeout_sec):
        """Waits until all that run cases have ended; whether each did with code 0."""
        deadline = time.monotonic() + timeout_sec
        codes = [None]
        while None in codes and not any(codes) and time.monotonic() < deadline:
            time.sleep(_POLL_SEC)
            codes = [self.cluster.exit_code(*member) for member in self.runners]
        return all(code == 0 for code in codes)

    def last_output(self):
        """The end of what each process that runs cases has written."""
        return "\n".join(
            self.cluster.output(*member)[-_NUM_LAST_CHARACTERS:]
            for member in self.runners
        )


@contextlib.contextmanager
def started(
    module,
    folder,
    *,
    path,
    cases=(),
    options=None,
    runners=(),
    num_cpu_devices=1,
    case_timeout_sec=CASE_TIMEOUT_SEC,
    log_dir=None,
    program=PROGRAM,
    **counts,
):
    """Runs a cluster in a ``with`` statement."""
    if not runners:
        runners = [("worker", index) for index in range(counts["num_workers"])]
        if counts.get("has_chief"):
            runners = [("chief", 0)]
    plan = {
        "module": module,
        "folder": str(folder),
        "path": str(path),
        "cases": list(cases),
        "options": dict(options or {}),
        "runners": [list(member) for member in runners],
        "num_cpu_devices": num_cpu_devices,
        "case_timeout_sec": case_timeout_sec,
    }
    argv = [sys.executable, str(program), json.dumps(plan)]
    is_cold = covering.is_full() or "IMPORT_AS_USERS" in os.environ
    is_cold = is_cold or program != PROGRAM
    with (LocalCluster if is_cold else ForkedCluster)(
        argv, env=ENV, log_dir=log_dir or folder / "logs", **counts
    ) as cluster:
        results = ResultFolder(folder, len(runners))
        yield CaseCluster(cluster, results, runners, case_timeout_sec)


def ran(module, folder, *, timeout_sec=CASE_TIMEOUT_SEC, **how):
    """Runs a cluster to its end, and fails if a process did."""
    with started(module, folder, **how) as running:
        if not running.ends_well(timeout_sec):
            pytest.fail(f"{module} failed in a process\n{running.cluster.tails()}")
    return running


def load(path):
    """A module by its file; it may import others of its folder."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.object(sys, "path", [*sys.path, str(path.parent)]):
        spec.loader.exec_module(module)
    return module
