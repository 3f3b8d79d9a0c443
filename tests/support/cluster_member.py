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

import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

from case_results import CaseResult, ResultFolder

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


if __name__ == "__main__":
    main()
