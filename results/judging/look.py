"""Whether a gate that looks at its generations may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from results.figures import relay
from results.judging import gate, gate_metrics
from results.judging.gate_metrics import Rule

if TYPE_CHECKING:
    from results.judging.gate import Gate
    from results.study.cases import Study


def of_plan(study: Study) -> Gate | None:
    """Returns the gate that the plan of a study records, with its verdict.

    None where there is none, and where its baseline is not in the study.
    """
    design = study.plan.measuring.gate
    if design is None or not (study.other_revisions or study.quality_runs):
        return None
    metric = gate_metrics.metric_of_gate(design.metric, study.plan.metrics)
    rule = Rule(metric=metric, delta=design.delta, alpha=design.alpha)
    has_revision = any(entry.spec.revision for entry in study.planned)
    if not has_revision:
        return None
    return gate.of_revisions(study, rule, baseline=design.baseline)


def has_risen(study: Study) -> bool:
    """Whether a count that is judged rose, which no further generation changes."""
    found = of_plan(study)
    return found is not None and found.has_risen


def is_decided(study: Study) -> bool:
    """Whether a look after the generations so far ends the gate.

    It ends with a clear verdict, after the last look, and where the machine disturbed
    too much for any verdict. Between two looks it goes on, unless a count rose.
    """
    design = study.plan.measuring.gate
    assert design is not None
    found = of_plan(study)
    if found is not None and found.has_risen:
        return True
    number = study.plan.repeats
    if number >= design.looks[-1] or relay.count_turns(study).is_unfit:
        return True
    if number not in design.looks:
        return False
    return (
        found is not None
        and found.paired is not None
        and found.paired.decided_after is not None
        and not found.why_unfit
    )
