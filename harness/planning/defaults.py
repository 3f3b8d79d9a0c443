"""The defaults of a sweep. The help reads them, so nothing is imported here."""

from __future__ import annotations

from typing import Final

REPEATS: Final = 3
REPETITIONS: Final = 5
MINUTES: Final = 12.0
MINUTES_TO_TARGET: Final = 30.0
MINUTES_OF_GATE: Final = 30.0
MAX_ROUNDS: Final = 23
QUALITY_REPEATS_OF_GATE: Final = 5
STEPS_PER_SYNC_ON_GPUS: Final = 10
TIMEOUT_SEC: Final = 900.0
RUNS_DIR: Final = "runs"
