"""The file ``turns.jsonl``: what the kernel said of each turn of a trial, line by line.

The trial's own processes cannot see what others do to its cores, so the harness writes
these lines, between turns. ``result.json`` is made from them and the rank files, and
``verify`` compares it with both.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.trial import rank_file
from results.errors import WriteStoreError
from results.store import fence, untrusted

if TYPE_CHECKING:
    from pathlib import Path

    from harness.machine.disturbance import Disturbance

TURNS_NAME = "turns.jsonl"


def last(trial_dir: Path) -> tuple[int, bool] | None:
    """Returns round and kind of the last whole turn, to show where a relay is.

    None where there is none yet, or the line is none: ``verify`` says what is damaged.
    """
    try:
        text = untrusted.read_text(trial_dir / TURNS_NAME) or ""
        turn = untrusted.parsed(text.rpartition("\n")[0].splitlines()[-1])
        return int(turn["round_index"]), bool(turn.get("is_sustained"))
    except rank_file.MALFORMED:
        return None


def append(
    trial_dir: Path,
    round_index: int,
    attempt: int,
    load: Disturbance,
    *,
    is_sustained: bool = False,
) -> None:
    """Appends one turn."""
    line: dict[str, object] = {
        "round_index": round_index,
        "attempt": attempt,
        "foreign_cpu_fraction": load.foreign_cpu_fraction,
        "foreign_resolution": load.foreign_resolution,
        "num_cores": load.num_cores,
        "one_core_resolution": load.one_core_resolution,
        "stolen_cpu_fraction": load.stolen_cpu_fraction,
        "stolen_resolution": load.stolen_resolution,
        "run_delay_sec": load.run_delay_sec,
        "num_throttled": load.num_throttled,
    }
    if is_sustained:
        line["is_sustained"] = True
    if load.gpus:
        line["gpus"] = [use.model_dump(mode="json") for use in load.gpus]
    path = trial_dir / TURNS_NAME
    try:
        fence.check(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:  # of a write, which names no path
        raise WriteStoreError(
            f"cannot write {str(path)!r}: {error.strerror}; free space there, then run"
            " the same command again"
        ) from error
