"""Whether a peer repeats our first losses: without that, none of its numbers counts.

It begins with exported weights, and takes its first steps on exported batches. Our own
process compares the losses that its processes have recorded with those of ``in_graph``,
when they have ended, and adds the result to the checks of the trial.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Final

from harness.trial.rank_file import RankFileError, rank_path, read_rank
from results.records.models import Control
from results.store import atomic
from results.study.agreement import OWN_CHECK
from results.study.matching import LOSS_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from results.records.models import TrialSpec

FILE: Final = "first_losses.json"
"""In the directory of a trial of a peer: what it has to repeat."""
TOLERANCES: Final = {"float32": LOSS_TOLERANCE, "mixed_bfloat16": 2.0**-6}
"""Relative, by the type that layers compute in.

bfloat16 has 8 bits. Rounding to them moves a number by at most ``2**-8`` of itself, and
by 0.41 of that in the mean square. In ResNet-50, 49 convolutions and 49 normalizations
follow one another, and each rounds: if independently, by ``0.41 * sqrt(98) = 4`` times
``2**-8`` together.
"""
_AS_EVER: Final = (Control.NONE, Control.TWIN)


def write(
    trial_dir: Path, spec: TrialSpec, losses: Sequence[float], of: str, dtype: str
) -> None:
    """Writes what a trial has to repeat."""
    number = min(len(losses), spec.num_warmup_steps)
    if spec.control not in _AS_EVER:
        number = 1
    fields = {"of": of, "dtype": dtype, "losses": list(losses[:number])}
    atomic.write_text(trial_dir / FILE, json.dumps(fields) + "\n")


def check(trial_dir: Path) -> None:
    """Adds the check to the records of a trial of a peer; nothing for other trials.

    What its processes have not recorded fails by itself.
    """
    try:
        expected = json.loads((trial_dir / FILE).read_text(encoding="utf-8"))
        found = _mean_losses(trial_dir)
    except (FileNotFoundError, RankFileError):
        return
    tolerance = TOLERANCES[expected["dtype"]]
    reason = disagreement(found, expected["losses"], expected["of"], tolerance)
    fields = {
        "kind": "sanity",
        "name": OWN_CHECK,
        "is_passed": not reason,
        "detail": reason or _agreement(found, expected["losses"], expected["of"]),
    }
    path = rank_path(trial_dir, 0)
    with atomic.named(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")


def _mean_losses(trial_dir: Path) -> list[float | None]:
    """Returns the loss of each step, the mean over processes."""
    first = read_rank(trial_dir, 0)
    logs = [first]
    logs += [read_rank(trial_dir, rank) for rank in range(1, first.num_ranks or 1)]
    found: list[float | None] = []
    for steps in zip(*(log.steps for log in logs), strict=False):
        losses = [step.loss for step in steps if step.loss is not None]
        is_whole = len(losses) == len(steps)
        found.append(statistics.fmean(losses) if is_whole else None)
    return found


def difference(first: float, second: float) -> float:
    """Returns the relative difference of two losses."""
    return abs(first - second) / max(abs(first), abs(second), 1e-30)


def disagreement(
    found: Sequence[float | None],
    expected: Sequence[float],
    of: str,
    tolerance: float,
) -> str:
    """Returns how first losses differ from those that are expected; empty if not."""
    start = f"from the same weights and batches, {of} has"
    for index, wanted in enumerate(expected):
        loss = found[index] if index < len(found) else None
        if loss is None:
            return f"step {index} has no loss; {start} {wanted:.6g}"
        apart = difference(loss, wanted)
        if not apart <= tolerance:
            return (
                f"the loss of step {index} is {loss:.6g}; {start} {wanted:.6g}, which"
                f" is {apart:.1e} apart (at most {tolerance:.2g}, relative)"
            )
    return ""


def _agreement(
    found: Sequence[float | None], expected: Sequence[float], of: str
) -> str:
    pairs = zip(found, expected, strict=False)
    apart = max(difference(loss or 0.0, wanted) for loss, wanted in pairs)
    return (
        f"{len(expected)} first losses, from the weights and batches of {of}: at most"
        f" {apart:.1e} apart, relative"
    )
