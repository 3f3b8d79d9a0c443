"""Whether the code that would run is the code that a study was measured with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import DifferentStudyError
from harness.machine import machine_state
from harness.planning import code_digest
from results.records.machine_record import MachineState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.planning.source_tree import SourceTree
    from results.records.models import Plan, PlannedTrial
    from results.store.study_store import Store


def check_code(
    plan: Plan, baseline: SourceTree | None = None, store: Store | None = None
) -> None:
    """Checks that the code that would run is the code of the plan.

    Args:
      plan: Of an existing study.
      baseline: The other tree of sources that is measured now.
      store: Has the commits of the trials that are there, for the message.

    Raises:
      DifferentStudyError: It is not; results of different code must not be mixed.
    """
    made_with = {
        (
            trial.spec.revision,
            trial.spec.workload,
            trial.spec.backend,
            trial.spec.code_digest,
        )
        for trial in plan.trials
    }
    for revision, workload, backend, planned in sorted(made_with):
        tree = baseline if revision else None
        if revision and (tree is None or tree.revision != revision):
            raise DifferentStudyError(
                f"study {plan.study!r} compares this tree with revision {revision!r},"
                " whose sources only a gate has; repeat the gate with its options to"
                " resume it"
            )
        now = code_digest.of_trial(workload, backend, tree)
        if planned != now:
            raise DifferentStudyError(
                f"study {plan.study!r} was made with code of {_measured_code(store)}"
                f" (digest {planned}); of backend {backend!r} it is now that of"
                f" {_code_now(tree)} (digest {now}), and results of different code must"
                " not be mixed; go back to the code of the study to resume it, or"
                " choose another --study"
            )


def _measured_code(store: Store | None) -> str:
    """Returns the commits of the trials of a study, in words."""
    envs = [trial.env for trial in store.read().trials] if store else []
    states = [env.machine_state for env in envs if env and env.machine_state]
    found = {_commit(state) for state in states}
    return " and ".join(sorted(found)) or "an unrecorded commit"


def _code_now(tree: SourceTree | None) -> str:
    root = machine_state.SOURCE_ROOT if tree is None else tree.root
    commit, is_modified = machine_state.read_source_state(root)
    state = MachineState(git_commit=commit, is_source_modified=is_modified)
    return _commit(state)


def _commit(state: MachineState) -> str:
    return f"commit {state.commit_text}" if state.commit_text else "no commit"


def equal_digests(trials: Sequence[PlannedTrial]) -> tuple[str, ...]:
    """Returns the code digests of two revisions if they are the same, else nothing."""
    sides: dict[bool, set[tuple[str, str]]] = {False: set(), True: set()}
    for trial in trials:
        of = trial.spec.backend, trial.spec.code_digest
        sides[bool(trial.spec.revision)].add(of)
    if sides[False] != sides[True]:
        return ()
    return tuple(sorted({digest for _, digest in sides[True]}))
