"""Stands in for the worker of a gate: its steps take longer where its sources say so.

The factors of time and accuracy are in ``slowdown.txt`` and ``learned.txt`` beside the
packages that run, and what a step has in ``counted.json``, so two revisions differ by
what their trees hold. Where a trial is forked, whose modules are those of the tests,
they are beside those that it would have imported. Steps of one process vary by less
than 1 %.
"""

import dataclasses
import functools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fake_worker

import harness
from harness.trial import measure
from harness.trial.measure import exact_metric
from results import Control

_OF_STEPS = {"graph_nodes": 100, "collective_bytes": 1030}


def read(name, default):
    """Returns what a file of the sources has as JSON."""
    imported = Path(harness.__file__).resolve().parents[1]
    path = Path(os.environ.get("FORKED_TRIAL_OF", imported)) / name
    return json.loads(path.read_text()) if path.is_file() else default


class Program(fake_worker.Program):
    """A program whose step takes 0.1 s times the factor of its sources."""

    def __init__(self, spec, *arguments):
        super().__init__(spec, *arguments)
        factor = float(read("slowdown.txt", 1.0))
        # Repetitions vary so that no A/A control can differ from its case by chance.
        is_slower = (spec.repetition_index + (spec.control is Control.AA)) % 2
        self._step_ns = round(0.1e9 * (1.005 if is_slower else 1.0) * factor)

    def evaluate(self):
        factor = float(read("learned.txt", 1.0))
        (metric,) = super().evaluate()
        return [dataclasses.replace(metric, value=metric.value * factor)]


def run_counted(is_aa_control, run_step):
    """A control counts otherwise, and is compared with nothing."""
    run_step()
    found = read("counted.json", _OF_STEPS)
    return [
        exact_metric(name, value + is_aa_control, unit="", n=1, protocol="")
        for name, value in found.items()
    ]


def main():
    measure_trial = measure.measure_trial

    def measure_counted(build, spec, *more, **named):
        counted = functools.partial(run_counted, spec.control is Control.AA)
        return measure_trial(build, spec, *more, run_counted=counted, **named)

    measure.measure_trial = measure_counted
    fake_worker.Program = Program
    return fake_worker.main()


if __name__ == "__main__":
    sys.exit(main())
