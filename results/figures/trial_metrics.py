"""Figures of one trial that plugins compute from its records.

An entry point of ``replicator_harness.metrics`` names a ``TrialMetric``. Its values are
a column of ``results.trials_frame``, and so of ``report --format csv`` and ``parquet``.
They are the plugin's: ``verify`` has no second computation of them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Final

from results import plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from results.study.cases import Entry

KIND: Final = "metrics"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialMetric:
    """A function of what a trial recorded.

    Attributes:
      name: The column, with its unit, such as ``step_time_p99_sec``.
      title: What readers call it.
      unit: Of its values; ``1`` for scores without a unit.
      of: Returns the value of an ok trial; NaN where it has none.
    """

    name: str
    title: str
    unit: str
    of: Callable[[Entry], float]


def complain(found: object) -> str:
    """Says what is wrong with what a plugin adds, or nothing."""
    wrong = plugins.complaint_of(TrialMetric)(found)
    if wrong or not isinstance(found, TrialMetric):
        return wrong
    if not _NAME.fullmatch(found.name):
        return f"is called {found.name!r}, but a column has small letters, digits and _"
    return ""


def installed(columns: Collection[str]) -> list[TrialMetric]:
    """Returns the metrics of all installed packages, by name.

    Args:
      columns: Names that a frame has already.

    Raises:
      PluginError: One cannot be used.
    """
    found = plugins.installed(KIND, columns).values()
    return [plugins.load(plugin, columns, complain) for plugin in found]


def value_of(metric: TrialMetric, entry: Entry) -> float:
    """Returns the value of a trial.

    Raises:
      PluginError: The plugin raises an error, or returns no number.
    """
    plugin = plugins.used(KIND, metric.name)
    what = f"metric {metric.name!r}" if plugin is None else plugin.what
    try:
        value = float(metric.of(entry))
    except Exception as error:
        raise plugins.PluginError(
            f"{what} raises an error for trial {entry.trial_id}:"
            f" {plugins.said(error)}; repair it, or uninstall its package"
        ) from error
    return value if math.isfinite(value) else math.nan
