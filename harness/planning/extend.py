"""Adds a generation to the plan of a relay that has not reached its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.planning.plan import trial_seed
from results.records import identity
from results.records.models import Order, PlannedTrial

if TYPE_CHECKING:
    from results.records.models import Plan


def with_next_generation(plan: Plan) -> Plan:
    """Returns the plan with one more generation of its relay."""
    index = plan.repeats
    update = {"repetition_index": index, "seed": trial_seed(plan.seed, index)}
    added = []
    for trial in plan.trials:
        spec = trial.spec
        if spec.order is Order.RELAY and spec.repetition_index == 0:
            new = spec.model_copy(update=update)
            trial_id, case_id = identity.ids(new)
            added.append(
                PlannedTrial(
                    trial_id=trial_id, case_id=case_id, modes=trial.modes, spec=new
                )
            )
    return plan.model_copy(
        update={"repeats": index + 1, "trials": (*plan.trials, *added)}
    )
