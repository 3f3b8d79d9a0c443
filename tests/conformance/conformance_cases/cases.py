"""What a conformance case is, and where all of them are kept.

A case is a plain function of a replicator that returns a nest of values. It runs on
every backend: in the test's own process, or in every process of a cluster, where each
sees only the replicas of its worker. What it returned is joined and then compared with
NumPy, or with the same function on a single device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import time
import traceback
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import replicator
from replicator.catalog import CAPABILITIES

DEFAULT_RTOL = 1e-5
DEFAULT_ATOL = 1e-6


@dataclasses.dataclass(frozen=True)
class Topology:
    """What a reference needs to know of the job it is compared with."""

    num_replicas: int
    num_workers: int = 1

    @property
    def num_local_replicas(self):
        """Replicas of one worker."""
        return self.num_replicas // self.num_workers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A function of a replicator, and what must come of it."""

    name: str  # That of the function.
    # Takes a replicator; returns a nest of arrays and ``PerReplica``.
    run: Callable[[Any], Any]
    needs: frozenset[str]  # Capabilities without which a backend skips the case.
    # Gives the expected nest of a topology; a case of no nest asserts by itself.
    reference: Callable[[Topology], Any] | None = None
    # Asserts what the joined nest must fulfil.
    check: Callable[[Topology, Any], None] | None = None
    like_single_device: bool = False  # Whether the expected nest is that of one device.
    num_logical_devices: int = 1  # Devices that a replica is split over.
    min_replicas: int = 1  # Fewest replicas with which it says something.
    max_replicas: int = 1_000_000  # Most replicas with which it says something.
    rtol: float = DEFAULT_RTOL  # Relative tolerance of floats.
    atol: float = DEFAULT_ATOL  # Absolute tolerance of floats.

    @property
    def summary(self):
        return str(self.run.__doc__).partition("\n")[0]


CASES = {}


def case(*needs, **options):
    """Makes the decorated function a case; see ``Case`` for the options."""
    unknown = set(needs) - set(CAPABILITIES)
    if unknown or not needs:
        raise ValueError(f"a case names known capabilities, not {sorted(unknown)}")
    if not {"reference", "check", "like_single_device"} & set(options):
        options["reference"] = lambda _: None

    def register(function):
        name = function.__name__
        if name in CASES or not function.__doc__:
            raise ValueError(f"case {name!r} exists already, or has no docstring")
        CASES[name] = Case(name=name, run=function, needs=frozenset(needs), **options)
        return function

    return register


def share(repl, values):
    """The values of this process' replicas, out of one value per replica of the job."""
    first = repl.first_replica_id
    num_local = repl.num_local_replicas
    return replicator.PerReplica(values[first : first + num_local])


def on_every(topology, value):
    return replicator.PerReplica([value] * topology.num_replicas)


CASE_TIMEOUT_SEC = 1200.0

# Where a hang prints its stacks; a test run sets it to what is not captured.
WATCHDOG = {"file": 2}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a case in one process; made of plain values, to cross a pipe."""

    value: Any = None  # The nest that the case returned, with NumPy leaves.
    # Names of the error's class and its bases; empty without an error.
    error_kinds: tuple[str, ...] = ()
    message: str = ""  # The error's message.
    trace: str = ""  # Where it came from.
    duration_sec: float = 0.0  # Time the case took.


def evaluate(case, make):
    """Runs a case; an error is an outcome, too. A hang ends the process."""
    keras.utils.set_random_seed(1)
    start = time.perf_counter()
    try:
        with _bounded(CASE_TIMEOUT_SEC):
            value = _plain(case.run(make(case)))
    except Exception as error:  # noqa: BLE001 - whatever came is judged later
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        return Outcome(
            None,
            kinds,
            str(error),
            traceback.format_exc(),
            time.perf_counter() - start,
        )
    return Outcome(value, duration_sec=time.perf_counter() - start)


@contextlib.contextmanager
def _bounded(limit_sec):
    """Prints all stacks and ends the process if the block takes longer."""
    faulthandler.dump_traceback_later(limit_sec, exit=True, file=WATCHDOG["file"])
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _plain(value):
    if isinstance(value, replicator.PerReplica):
        return replicator.PerReplica([_plain(leaf) for leaf in value])
    if isinstance(value, dict):
        return {key: _plain(leaf) for key, leaf in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(leaf) for leaf in value)
    if isinstance(value, str) or value is None:
        return value
    return np.asarray(value.numpy() if tf.is_tensor(value) else value)


def join(outcomes):
    """Joins the outcomes of all workers, in the order of their ids."""
    failed = [outcome for outcome in outcomes if outcome.error_kinds]
    if failed and len(failed) < len(outcomes):
        states = [o.error_kinds[0] if o.error_kinds else "fine" for o in outcomes]
        return dataclasses.replace(failed[0], message=f"workers disagree: {states}")
    if failed:
        return failed[0]
    try:
        value = _join([outcome.value for outcome in outcomes])
    except (AssertionError, ValueError) as error:
        return Outcome(
            error_kinds=(type(error).__name__,),
            message=f"what workers returned does not fit together: {error}",
            trace=traceback.format_exc(),
        )
    return dataclasses.replace(outcomes[0], value=value)


def _join(values):
    first = values[0]
    if isinstance(first, replicator.PerReplica):
        return replicator.PerReplica([leaf for value in values for leaf in value])
    if isinstance(first, dict):
        return {key: _join([value[key] for value in values]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_join(parts) for parts in zip(*values, strict=True))
    for value in values[1:]:
        np.testing.assert_array_equal(first, value, "workers see different values")
    return first


def judge(case, topology, outcome, single):
    """Asserts that an outcome is what the case demands."""
    assert not outcome.error_kinds, f"{outcome.message}\n{outcome.trace}"
    if case.check is not None:
        case.check(topology, outcome.value)
        return
    expected = single if case.reference is None else case.reference(topology)
    _compare(case, expected, outcome.value, case.name)


def _compare(case, expected, got, place):
    if isinstance(expected, replicator.PerReplica):
        expected, got = list(expected), list(got)
    if isinstance(expected, dict):
        assert list(expected) == list(got), place
        for key, value in expected.items():
            _compare(case, value, got[key], f"{place}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(got), place
        for index, (value, other) in enumerate(zip(expected, got, strict=True)):
            _compare(case, value, other, f"{place}[{index}]")
    elif isinstance(expected, str) or expected is None:
        assert expected == got, place
    else:
        _compare_arrays(case, np.asarray(expected), got, place)


def _compare_arrays(case, expected, got, place):
    assert expected.dtype == got.dtype, f"{place}: {expected.dtype} != {got.dtype}"
    assert expected.shape == got.shape, f"{place}: {expected.shape} != {got.shape}"
    if np.issubdtype(expected.dtype, np.integer):
        np.testing.assert_array_equal(got, expected, place)
        return
    wide = np.float64
    np.testing.assert_allclose(
        got.astype(wide), expected.astype(wide), case.rtol, case.atol, err_msg=place
    )
