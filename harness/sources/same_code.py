"""Whether the code that would run is the code that a study was measured with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.command import identity, program
from harness.errors import DifferentStudyError
from harness.machine import machine_state
from harness.sources import code_digest, plugin_code
from results.records.machines.machine_record import MachineState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.sources.source_tree import SourceTree
    from results.records.models import Plan, PlannedTrial, Program
    from results.store.study_store import Store


def check_code(
    plan: Plan,
    baseline: SourceTree | None = None,
    store: Store | None = None,
    program_code: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Checks that the code that would run is the code of the plan."""
    records = {trial.spec.program for trial in plan.trials}
    if plan.program_code:
        left_out = [] if store is None else [store.root.parent, store.root]
        _check_program(plan, records, program_code, left_out)
        return
    plugin_code.check(plan)
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


def _check_program(
    plan: Plan,
    records: Iterable[Program | None],
    program_code: Mapping[str, Mapping[str, str]] | None,
    left_out: Sequence[Path],
) -> None:
    """Checks that a program of the user's is the one of the plan."""
    if program_code is None:
        if len(plan.program_code) > 1:
            others = ", ".join(filter(None, plan.program_code))
            raise DifferentStudyError(
                f"study {plan.study!r} compares this program with revision {others},"
                " whose sources only a gate has; repeat the gate with its options to"
                " resume it"
            )
        (record,) = records
        assert record is not None
        folder = Path.cwd()
        program.check_folder(record, folder)
        program_code = {
            "": identity.of_program(record.command, folder, left_out=left_out)
        }
    for revision, planned in plan.program_code.items():
        now = program_code.get(revision)
        if now is None:
            raise DifferentStudyError(
                f"study {plan.study!r} compares with revision {revision!r}, which is"
                f" not measured now; choose another --study"
            )
        found = identity.differences(planned, now)
        if found:
            raise DifferentStudyError(
                f"study {plan.study!r} was made with another program: {found[0]}"
                f"{f' (and {len(found) - 1} more)' if found[1:] else ''}; results of"
                " different code must not be mixed: go back to that of the study to"
                " resume it (what the program writes belongs into .gitignore), or"
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
