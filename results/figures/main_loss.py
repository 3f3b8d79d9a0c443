"""Which one part of a step is most of what a case loses, if the measurement tells.

A *loss* is what a step takes longer than that of one replica. A part is named only if,
over generations and with the 95 % interval of Student's t,

- the loss itself is above 0,
- the part is more than half of the loss,
- it is larger than every other part, the unexplained one included,
- and it is not larger than the loss by half of it: then two controls contradict each
  other, such as two that take away the same time.

All of these are paired differences of one generation, so noise that cases share
cancels. Otherwise nothing is named, which is not evidence that there is no single
cause. In the studies of ``tests/results/figures/test_known_losses.py``, each with one
known loss, the part that is named is the right one, or none is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from results.figures import input_bound

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

UNEXPLAINED: Final = "unexplained"
_MOST: Final = 0.5
"""Of the loss: a part of less than half is not most of it."""
_CONTRADICTS: Final = 1.5
"""Of the loss: a part beyond this contradicts the parts that are negative."""


def name_of(parts: Mapping[str, np.ndarray], lost: np.ndarray) -> str:
    """The part that is most of a loss; empty if the measurement does not tell."""
    if not _is_above_zero(lost):
        return ""
    for name, values in parts.items():
        if name == UNEXPLAINED or not _is_above_zero(values - _MOST * lost):
            continue
        others = (of for other, of in parts.items() if other != name)
        is_largest = all(_is_above_zero(values - other) for other in others)
        return name if is_largest and not _contradicts(values, lost) else ""
    return ""


def _contradicts(values: np.ndarray, lost: np.ndarray) -> bool:
    return _is_above_zero(values - _CONTRADICTS * lost)


def _is_above_zero(values: np.ndarray) -> bool:
    low = input_bound.over_generations(values).low
    return low is not None and low > 0
