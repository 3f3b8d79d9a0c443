"""Limits for numbers, strings and lists, on the command line and in records.

They are far beyond what is measured. This module has only numbers, so that the command
line can check its options before it loads anything.
"""

from __future__ import annotations

MAX_TRIALS = 100_000
"""Trials of one study; each is a process, so more would run for weeks."""
MAX_REPLICAS = 65_536
MAX_STEPS = 1_000_000
"""Steps of a measured window, or of the warmup: all of them are recorded."""
MAX_LOSSES = 100 * MAX_STEPS
"""Steps of a quality run."""
MAX_BATCH_SIZE = 1_000_000_000
"""Batch size of one replica, and of a global batch on the command line."""
MAX_TOTAL = 10**18
"""Sums: examples, bytes, parameters. Fits the 64 bits of pandas columns."""
MAX_SEED = 2**63 - 1
MIN_SEC = 1e-9
MAX_SEC = 1e9
"""From a nanosecond, the resolution of clocks, to thirty years."""
MAX_REAL = 1e100
MAX_FLOP_RATE = 1e24
"""A figure or its negative; its square and sums of it do not overflow."""
MAX_EVALUATIONS = 10_000
MAX_BUDGET = 1e15
MAX_NAME = 200
MAX_LINE = 5_000
MAX_TEXT = 1_000_000
MAX_METRICS = 50
MAX_CHECKS = 200_000
"""Sanity checks of one trial: a few of each rank."""
