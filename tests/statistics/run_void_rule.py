"""How often the void rule is right here: ``run_void_rule.py [TURNS]``.

A trial computes on one core for turns of 0.3 s, the shortest ones, while nothing else,
another core, or a hog on its own core is busy. Each turn is judged twice: with the
kernel's exact run time of cores where there is one, and with its ticks alone. Needs a
quiet machine of two cores; takes a minute. Fails if more than 2 % of the undisturbed
turns are void, or less than 98 % of those with a hog of 10 % or more.
"""

import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from harness.machine import core_clock, disturbance

TURN_SEC = 0.3
MOST_ERRORS = 0.02
OWN_FRACTION = 0.7
SEEN_FRACTION = 0.1  # beyond the limit and what can be rounding
# Uses a fraction of a core in periods of 20 ms, without a drift.
LOAD = """
import os, sys, time
core, fraction = int(sys.argv[1]), float(sys.argv[2])
os.sched_setaffinity(0, {core})
print(flush=True)
while True:
    end = time.process_time() + 0.02 * fraction
    while time.process_time() < end: pass
    if fraction < 1: time.sleep(0.02 * (1 - fraction))
"""


@contextlib.contextmanager
def load(core, fraction):
    """Runs a process that uses a fraction of a core; yields its id."""
    command = [sys.executable, "-c", LOAD, str(core), str(fraction)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def write(line):
    """Prints a line at once: a run takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(core, num_turns, pid):
    """Returns foreign fraction and void or not, of each turn, by source."""
    found = {"exact": [], "ticks": []}
    for _ in range(num_turns):
        start = core_clock.read((core,), (pid,))
        time.sleep(TURN_SEC)
        end = core_clock.read((core,), (pid,))
        for source, turns in found.items():
            if source == "ticks":
                start = dataclasses.replace(start, run_sec=None)
            turn = disturbance.between(start, end)
            is_void = disturbance.void_reason(turn, 0) != ""
            turns.append((turn.foreign_cpu_fraction or 0.0, is_void))
    return found


def main(num_turns):
    """Prints a table of the cases; returns 1 if the rule is wrong too often."""
    core, *others = sorted(os.sched_getaffinity(0))
    if not others:
        write("error: one core only; needs two, one of them for the harness")
        return 2
    os.sched_setaffinity(0, set(others))
    cases = [("nothing else", None, 0.0), ("another core busy", others[0], 1.0)]
    cases += [(f"hog of {p:.0%}", core, p) for p in (0.02, 0.1, 0.3, 1.0)]
    num_wrong = 0
    write(f"{'case':20} {'source':7} {'foreign':>8} {'void':>6}  n = {num_turns}")
    for name, hog_core, fraction in cases:
        with contextlib.ExitStack() as stack:
            pid = stack.enter_context(load(core, OWN_FRACTION))
            if hog_core is not None:
                stack.enter_context(load(hog_core, fraction))
            time.sleep(0.5)
            found = run(core, num_turns, pid)
        for source, turns in found.items():
            foreign = statistics.fmean(value for value, _ in turns)
            num_void = sum(is_void for _, is_void in turns)
            rate = num_void / num_turns
            is_wrong = False
            if hog_core != core:
                is_wrong = rate > MOST_ERRORS
            elif fraction >= SEEN_FRACTION:
                is_wrong = rate < 1 - MOST_ERRORS
            num_wrong += is_wrong
            mark = "  WRONG" if is_wrong else ""
            write(f"{name:20} {source:7} {foreign:8.3f} {rate:6.2f}{mark}")
    return min(num_wrong, 1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
