"""The suite's cases as cases of a cluster, run on replicators that are made once."""

import functools

from conformance_cases import every, runner
from conformance_cases.targets import TARGETS

from replicator.core import devices

CASE_TIMEOUT_SEC = 90.0


def set_up(_folder, *, target_name):
    """What makes replicators; the first joins the cluster, before any variable."""
    target = TARGETS[target_name]
    devices.split_cpu(target.num_devices_per_worker)
    make = functools.cache(target.make_for)
    make(1)
    runner.CASE_TIMEOUT_SEC = CASE_TIMEOUT_SEC
    return (make,)


def _case(case):
    return lambda make: runner.evaluate(case, lambda c: make(c.num_logical_devices))


CASES = {name: _case(case) for name, case in every.CASES.items()}


def can_continue(outcomes, _make):
    """Whether no case has parted the processes; None is an outcome that was lost."""
    return all(outcome is not None and not outcome.error_kinds for outcome in outcomes)
