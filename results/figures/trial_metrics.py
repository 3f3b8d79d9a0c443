"""Figures of one trial that plugins compute from its records.

An entry point of ``replicator_harness.metrics`` names a ``TrialMetric``. Its values are
a column of ``results.trials_frame``, its means over trials are on the page, and one
that says which way is better is judged by gates. ``verify`` does not recompute it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from results import plugins

if TYPE_CHECKING:
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
      of: Returns the value of an ok trial; NaN where it has none. Means are geometric:
        a case has one where the values of all its trials are above zero.
      is_higher_better: Which way it gets better; None if neither way is better, so that
        no gate judges it.
      tolerance: The loss, relative to the baseline, that a gate accepts by default.
    """

    name: str
    title: str
    unit: str
    of: Callable[[Entry], float]
    is_higher_better: bool | None = None
    tolerance: float = 0.05


def complain(metric: object) -> str:
    """Says what is wrong with what a plugin adds, or nothing."""
    wrong = plugins.complaint_of(TrialMetric)(metric)
    if wrong or not isinstance(metric, TrialMetric):
        return wrong
    if not _NAME.fullmatch(metric.name):
        return (
            f"is called {metric.name!r}, but a column has small letters, digits and _"
        )
    if not 0.0 < metric.tolerance < 1.0:
        return f"has tolerance={metric.tolerance!r}: use a ratio between 0 and 1"
    return ""


def names() -> list[str]:
    """Returns the names of all that are installed; imports and complains of none."""
    try:
        return list(plugins.installed(KIND, ()))
    except plugins.PluginError:
        return []


def find(name: str, built_in: Collection[str]) -> TrialMetric | None:
    plugin = plugins.installed(KIND, built_in).get(name)
    metric: TrialMetric | None = None
    if plugin is not None:
        metric = plugins.load(plugin, built_in, complain)
    return metric


def installed(columns: Collection[str]) -> list[TrialMetric]:
    plugins_here = plugins.installed(KIND, columns).values()
    return [plugins.load(plugin, columns, complain) for plugin in plugins_here]


def value_of(metric: TrialMetric, entry: Entry) -> float:
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


def positive_value_of(metric: TrialMetric, entry: Entry) -> float:
    value = value_of(metric, entry)
    return value if value > 0 else 0.0
