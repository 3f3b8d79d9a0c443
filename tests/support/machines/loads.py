"""Loads within a block that a test puts in place of those of this machine."""

import dataclasses

from harness.machine.disturbance import Disturbance

QUIET = Disturbance(
    foreign_cpu_fraction=0.012345678,
    foreign_resolution=0.031,
    stolen_cpu_fraction=0.001234567,
    stolen_resolution=0.031,
    run_delay_sec=0.012345678,
    num_throttled=0,
)
"""The block counts."""
BUSY = dataclasses.replace(
    QUIET, foreign_cpu_fraction=0.312345678, run_delay_sec=0.112345678
)
"""The block is discarded."""
