"""What the control ``input_only`` says about a case, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.words import formats
from reports.words.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from reports.view.view import View
    from results.figures.input_bound import InputBound
    from results.statistics.estimates import Estimate

_MEANINGS = {
    "input-bound": "faster replicas would wait for their batches",
    "not input-bound": "its batches arrive before they are needed",
    "inconclusive": "whether it is input-bound is inconclusive",
}


def _mean_text(found: Estimate, write: Callable[[float], str]) -> str:
    return formats.with_interval(found.value, found.low, found.high, write)


def fraction_text(found: InputBound) -> str:
    """Writes the fraction of a step that the pipelines take alone."""
    return _mean_text(found.fraction, formats.percent)


def statement(found: InputBound, write: Callable[[float], str]) -> str:
    """Says what the pipelines take alone, for the section on lost time."""
    return (
        f"{found.verdict}: the input pipelines alone take "
        f"{_mean_text(found.input_sec, write)} ms, {fraction_text(found)} of the "
        f"step; {_MEANINGS[found.verdict]}"
    )


def findings(view: View) -> list[Finding]:
    """Returns the cases whose loss is that of their input, in planned order."""
    found = []
    for item in view.explained:
        bound = None if item.lost is None else item.lost.input_bound
        if bound is None or not bound.explains_loss:
            continue
        spec = item.case.spec
        replicas = formats.count(spec.num_replicas, "replica")
        text = fraction_text(bound)
        figure, _, interval = text.partition(" ")
        found.append(
            Finding(
                figure=figure,
                interval=interval,
                label=f"{spec.backend}, {replicas}, input alone of a step",
                sentence=(
                    f"{spec.backend} is input-bound with {replicas}: its input "
                    f"pipelines alone take {text} of a step, longer than the step of "
                    "one replica, so the loss is that of the input."
                ),
                trial_ids=item.trial_ids,
            )
        )
    return found
