"""What a figure of a workload means, stated once; imports no TensorFlow.

A workload declares its metrics in ``workloads/NAME/metrics.py``. Reports, gates, help
and exports read the declaration, which plans of studies record.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The facts about a metric; its value in a trial is a ``QualityMetric``.

    Attributes:
      name: As in records and on the command line, such as ``top_1``.
      title: What readers call it, such as ``Top-1 accuracy``.
      unit: Of its values; ``ratio`` for fractions, ``1`` for scores without a unit.
      protocol: How it is measured, and on how many examples, in one line.
      is_higher_better: Which way it gets better; None if neither way is better.
      tolerance: The loss, relative to the baseline, that its gate accepts by default.
      is_of_window: Whether it is a rate of the measured window, not what was learned.
      of: Computes it from what the workload observes. For what was learned, the value
        of each example (``quality.of_examples``); None if another module computes it.
    """

    name: str
    title: str
    unit: str
    protocol: str
    is_higher_better: bool | None
    tolerance: float = 0.05
    is_of_window: bool = False
    of: Callable[..., Any] | None = None

    @property
    def is_judged(self) -> bool:
        """Whether a gate can say which of two results is better."""
        return self.is_higher_better is not None and not self.is_of_window

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"metric name {self.name!r} is a column and an option: use small"
                " letters, digits and underscores, such as 'top_1'"
            )
        if not 0.0 < self.tolerance < 1.0:
            raise ValueError(
                f"metric {self.name!r} has tolerance={self.tolerance!r}: use a ratio"
                " between 0 and 1, such as 0.05"
            )
