"""Reasons of void turns are counted by cause, whatever was measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.machine.disturbance import Disturbance, void_reason
from results.figures.relay import _without_numbers

NONE = Disturbance(
    foreign_cpu_fraction=0.0,
    foreign_resolution=0.0,
    stolen_cpu_fraction=0.0,
    stolen_resolution=0.0,
    run_delay_sec=0.0,
    num_throttled=0,
    throttled_sec=0.0,
)


@pytest.mark.parametrize(
    ("fields", "num_retraces", "expected"),
    [
        (
            [{"foreign_cpu_fraction": value} for value in (0.12, 0.9)],
            0,
            "other processes used more than 3 % of its cores",
        ),
        (
            [{"foreign_cpu_fraction": v, "num_cores": 16} for v in (0.02, 0.028)],
            0,
            "other processes used more than 13 % of one core of its 16, if all on one",
        ),
        (
            [{"stolen_cpu_fraction": value} for value in (0.02, 0.5)],
            0,
            "the hypervisor gave more than 1 % of its cores to other guests",
        ),
        (
            [{"num_throttled": value} for value in (1, 7)],
            0,
            "its cores were throttled",
        ),
        ([{}], 1, "its step function was retraced"),
        ([{}], 4, "its step function was retraced"),
    ],
)
def test_the_limit_stands_in_place_of_what_was_measured(
    fields: list[dict[str, Any]], num_retraces: int, expected: str
) -> None:
    """The sentence stays one."""
    for changes in fields:
        load = dataclasses.replace(NONE, **changes)
        assert expected == _without_numbers(void_reason(load, num_retraces))
