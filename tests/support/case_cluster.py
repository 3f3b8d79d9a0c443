"""Runs the cases of a module in the processes of a real cluster; results by case.

Every process of the cluster runs this file: ``case_cluster.py PLAN``, a JSON object.
Those that the plan names as runners run the cases of its module, one after the other,
and leave each result in its folder as soon as it is known; the others serve. A module
of cases has

- ``CASES``: functions by name;
- ``set_up(folder, **options)``, if there is something to make once: returns a tuple of
  what every case is called with;
- ``can_continue(values, *made)``, if a case can leave the processes unable to continue
  together: asked after each case with the values of all processes; False ends them;
- ``afterwards(folder)``, if something follows the last case: for as long as it takes.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import faulthandler
import importlib
import importlib.util
import json
import os
import pickle
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

import covering
import fork_server
import numpy as np

from replicator.cluster import environment
from replicator.cluster.local_cluster import LocalCluster

PROGRAM = Path(__file__)
CASE_TIMEOUT_SEC = 600.0
ENV = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
_POLL_SEC = 0.02
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
            raise AssertionError(f"{case} in process {process}:\n{outcome.trace}")
        return outcome.value

    def values(self, case):
        """What a case returned in every process that runs cases."""
        return [self.value(case, process) for process in range(len(self.runners))]

    def error(self, case, process=0):
        outcome = self.outcome(case, process)
        if not outcome.error:
            raise AssertionError(
                f"{case} raised nothing, but returned {outcome.value!r}"
            )
        return outcome.error

    def wait_until(self, condition, what, process=0):
        """Waits as long as a case may take; fails at the end of the process, too."""
        deadline = time.monotonic() + self._case_timeout_sec
        while not condition():
            is_running = self.cluster.is_running(*self.runners[process])
            if not is_running and not condition():
                raise AssertionError(
                    f"process {process} ended before {what}\n{self.cluster.tails()}"
                )
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} took too long\n{self.cluster.tails()}")
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
            raise AssertionError(
                f"{module} failed in a process\n{running.cluster.tails()}"
            )
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


# What every process runs.


def main():
    """Serves, or runs the cases of the plan."""
    plan = json.loads(sys.argv[1])
    config = environment.detect().config()
    own = [config.kind, config.index]
    if own not in plan["runners"]:
        from replicator import server

        server.run(["--num-cpu-devices", str(plan["num_cpu_devices"])])
        return
    sys.path.insert(0, plan["path"])
    run_cases(plan, plan["runners"].index(own))
    if len(plan["runners"]) == 1:
        # TensorFlow's threads that wait for lost servers must not hold up the end.
        sys.stdout.flush()
        os._exit(0)


def run_cases(plan, process):
    """Runs the cases as the process of a number among those that do."""
    module = importlib.import_module(plan["module"])
    folder, timeout_sec = Path(plan["folder"]), plan["case_timeout_sec"]
    results = ResultFolder(folder, len(plan["runners"]))
    made = ()
    if hasattr(module, "set_up"):
        made = module.set_up(folder, **plan["options"])
    for name in plan["cases"] or module.CASES:
        sys.stdout.write(f"case {name}\n")
        sys.stdout.flush()
        result = evaluate(module.CASES[name], made, timeout_sec)
        results.write(name, process, result)
        if hasattr(module, "can_continue"):
            every = results.wait_for_all(name, timeout_sec)
            if not module.can_continue([one.value for one in every], *made):
                return
    if hasattr(module, "afterwards"):
        module.afterwards(folder)


def evaluate(case, made, timeout_sec):
    """Runs a case; a hang prints all stacks and ends the process."""
    faulthandler.dump_traceback_later(timeout_sec, exit=True)
    start = time.monotonic()
    try:
        result = CaseResult(value=case(*made), duration_sec=time.monotonic() - start)
        result.to_json()  # what cannot be written is an error of the case
    except Exception as error:  # noqa: BLE001 (the test raises it again)
        traceback.print_exc()  # for tests that wait for something else
        result = CaseResult(
            error=f"{type(error).__name__}: {error}",
            trace=traceback.format_exc(),
            duration_sec=time.monotonic() - start,
        )
    finally:
        faulthandler.cancel_dump_traceback_later()
    return result


_PICKLED = "__pickled__"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What came of a case in one process."""

    value: Any = None  # What it returned; tuples have become lists.
    error: str = ""  # Type and message of what it raised; empty if it returned.
    trace: str = ""  # Where that was raised.
    duration_sec: float = 0.0  # Time that the case took.

    def to_json(self):
        """As text; what JSON does not know, such as arrays, is pickled in it."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps(fields, default=_pickled)

    @classmethod
    def from_json(cls, text):
        return cls(**json.loads(text, object_hook=_unpickled))


def _pickled(value):
    return {_PICKLED: base64.b64encode(pickle.dumps(value)).decode("ascii")}


def _unpickled(found):
    if set(found) != {_PICKLED}:
        return found
    return pickle.loads(base64.b64decode(found[_PICKLED]))


@dataclasses.dataclass(frozen=True)
class ResultFolder:
    """One file per case and process; a file is there when it is complete."""

    path: Path  # The folder.
    num_processes: int  # Processes that run the cases.

    def write(self, case_name, process, result):
        part = self._file(case_name, process).with_suffix(".part")
        part.write_text(result.to_json(), encoding="utf-8")
        part.rename(part.with_suffix(".json"))

    def has(self, case_name, process):
        return self._file(case_name, process).exists()

    def has_all(self, case_name):
        return all(self.has(case_name, p) for p in range(self.num_processes))

    def read(self, case_name, process):
        text = self._file(case_name, process).read_text(encoding="utf-8")
        return CaseResult.from_json(text)

    def read_all(self, case_name):
        return [self.read(case_name, p) for p in range(self.num_processes)]

    def wait_for_all(self, case_name, timeout_sec):
        deadline = time.monotonic() + timeout_sec
        while not self.has_all(case_name):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"not every process came out of {case_name} in {timeout_sec:g} s"
                )
            time.sleep(_POLL_SEC)
        return self.read_all(case_name)

    def _file(self, case_name, process):
        # No suffix is taken off a name with a dot in it.
        return self.path / f"{case_name}.{process}.json"


# What cases tell and check, and what tests read of it.


def send(**fields):
    """Writes a message of this process to its output."""
    sys.stdout.write(json.dumps({"time": time.time(), **fields}) + "\n")
    sys.stdout.flush()


def received(cluster, member, *, num_lines_before=0):
    """All messages of a process, after so many lines of its output."""
    text = cluster.output(*member)
    # The last line may still be being written.
    lines = text[: text.rfind("\n") + 1].splitlines()[num_lines_before:]
    return [json.loads(line) for line in lines if line.startswith("{")]


def last(messages, field):
    """The last value of a field, or None."""
    values = [message[field] for message in messages if field in message]
    return values[-1] if values else None


def wait_until(condition, cluster, timeout_sec):
    """Waits for a condition; when the time is over, fails with the outputs."""
    deadline = time.monotonic() + timeout_sec
    while not condition():
        assert time.monotonic() < deadline, cluster.tails()
        time.sleep(_POLL_SEC)


def check(expected, found):
    assert expected == found, f"{found!r} in place of {expected!r}"


def check_message(pattern, call):
    """The call raises an error that says this."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 (its type is a part of the text)
        text = f"{type(error).__name__}: {error}"
    else:
        text = "no error"
    assert re.search(pattern, text, re.DOTALL), text


def check_messages(calls):
    """Each call, by pattern."""
    for pattern, call in calls.items():
        check_message(pattern, call)


def gathered(repl, value):
    """What all workers have, in their order."""
    return list(map(json.loads, repl.gather_bytes(json.dumps(value).encode())))


def check_close(expected, weights):
    """To the rounding of sums of float32 in another order."""
    for want, got in zip(expected, weights, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)


if __name__ == "__main__":
    main()
