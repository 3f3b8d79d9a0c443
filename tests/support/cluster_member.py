"""Every process of a test cluster: ``cluster_member.py PLAN``, a JSON object.

Processes that the plan names as runners run the cases of its module, one after the
other, and leave each result in its folder as soon as it is known; the others serve.
A module of cases has

- ``CASES``: functions by name;
- ``set_up(folder, **options)``, if there is something to make once: returns a tuple of
  what every case is called with;
- ``can_continue(values, *made)``, if a case can leave the processes unable to continue
  together: asked after each case with the values of all processes; False ends them;
- ``afterwards(folder)``, if something follows the last case: for as long as it takes.
"""

from __future__ import annotations

import base64
import dataclasses
import faulthandler
import importlib
import json
import os
import pickle
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from replicator.cluster import environment


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


_POLL_SEC = 0.02
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


_POLL_SEC = 0.02


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
