"""What is seen of a run, and whether two runs give the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

# Rounding of float32 (6e-8 each) over some ten operations and sums of other orders,
# which derivatives up to the third order enlarge. Relative to the largest element.
RTOL = 1e-3
ATOL = 1e-4
# Rounding of float16 (5e-4 each), twice.
RTOL_OF_HALVES = 2e-3
# Two right answers of this share of the tolerance apart leave too little to judge by.
ILL_CONDITIONED = 0.1
MAX_MAGNITUDE = 1e6


class DifferenceError(AssertionError):
    """The library and the interpreter disagree."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What is seen of a run after each call of ``run``."""

    # By call, replica and output; what the last step of the call returned.
    outputs: list[list[list[Any]]] = dataclasses.field(default_factory=list)
    # By call and floating output, its mean over replicas by ``reduce``.
    means: list[list[Any]] = dataclasses.field(default_factory=list)
    # By call, the variables by name.
    outside: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # The variables by name after the call that failed, if one did.
    failed: dict[str, Any] = dataclasses.field(default_factory=dict)


def leaves(seen):
    found = []
    for call, (outputs, means, outside) in enumerate(
        zip(seen.outputs, seen.means, seen.outside, strict=True)
    ):
        for replica, values in enumerate(outputs):
            found += [
                (f"call {call}, replica {replica}, output {index}", np.asarray(value))
                for index, value in enumerate(values)
            ]
        found += [
            (f"call {call}, mean {index} over replicas", np.asarray(value))
            for index, value in enumerate(means)
        ]
        found += [
            (f"call {call}, variable {name} outside", np.asarray(value))
            for name, value in outside.items()
        ]
    return found


def compare(expected, seen):
    for (place, want), (_, got) in zip(leaves(expected), leaves(seen), strict=True):
        kind = np.dtype(np.float32) if want.dtype == np.float64 else want.dtype
        if got.dtype != kind or got.shape != want.shape:
            raise DifferenceError(
                f"{place}: {got.dtype}{got.shape} in place of {kind}{want.shape}"
            )
        if not is_close(want, got):
            raise DifferenceError(
                f"{place}: {got.tolist()} in place of {want.tolist()}"
            )


def is_close(want, got):
    """Whether a value is what is expected, but for rounding if it is a float."""
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype.kind != "f":
        return np.array_equal(want, got)
    return bool(np.all(np.abs(want - got.astype(np.float64)) <= tolerance(want)))


def tolerance(expected):
    relative = RTOL_OF_HALVES if expected.dtype == np.float16 else RTOL
    return ATOL + relative * float(np.max(np.abs(expected), initial=0.0))


def can_judge(expected, rounded):
    """Whether values are of moderate size, and rounding moves them little."""
    for (_, one), (_, other) in zip(leaves(expected), leaves(rounded), strict=True):
        if one.dtype == np.float16:
            if not is_close(one, other):
                return False
            continue
        if one.dtype != np.float64:
            if not np.array_equal(one, other):
                return False
            continue
        if not np.all(np.abs(one) < MAX_MAGNITUDE):
            return False
        if not np.all(np.abs(one - other) <= ILL_CONDITIONED * tolerance(one)):
            return False
    return True
