"""Whether the code that runs is the code of a study: when it goes on, and meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness import SOURCE_ROOT
from harness.command import identity, program
from harness.errors import DifferentStudyError, PlanError
from harness.machine import machine_state
from harness.sources import code_digest
from results.records.machines.machine_record import MachineState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.sources.code_digest import SourceTree
    from results.records.models import Plan, PlannedTrial, Program
    from results.store.study_store import Store


def check_code(
    plan: Plan,
    baseline: SourceTree | None = None,
    store: Store | None = None,
    program_code: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Checks that the code that would run is the code of the plan."""
    if plan.program_code:
        left_out = [] if store is None else [store.root.parent, store.root]
        _check_program(plan, program_code, left_out)
        return
    if found := code_digest.changed_plugin(plan):
        raise DifferentStudyError(
            f"study {plan.study!r} was made with another state of {found}; results of"
            " different code must not be mixed: go back to that of the study to resume"
            " it, or choose another --study"
        )
    specs = [trial.spec for trial in plan.trials]
    made_with = {(s.revision, s.workload, s.backend, s.code_digest) for s in specs}
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
                f" (digest {planned}); it is now the code of {_code_now(tree)} (digest"
                f" {now}), and results of different code must not be mixed; go back to"
                " the code of the study to resume it, or choose another --study"
            )


def _check_program(
    plan: Plan,
    program_code: Mapping[str, Mapping[str, str]] | None,
    left_out: Sequence[Path],
) -> None:
    """Checks that an external command is the one of the plan."""
    if program_code is None:
        if len(plan.program_code) > 1:
            others = ", ".join(filter(None, plan.program_code))
            raise DifferentStudyError(
                f"study {plan.study!r} compares this program with revision {others},"
                " whose sources only a gate has; repeat the gate with its options to"
                " resume it"
            )
        record, folder = _program_of(plan), Path.cwd()
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
                f"{_more(found)}; results of different code must not be mixed: go back"
                " to that of the study to resume it (what the program writes belongs"
                " into .gitignore), or choose another --study"
            )


def _program_of(plan: Plan) -> Program:
    record = plan.trials[0].spec.program
    assert record is not None
    return record


def _more(found: Sequence[str]) -> str:
    return f" (and {len(found) - 1} more)" if found[1:] else ""


def _measured_code(store: Store | None) -> str:
    """Returns the commits of the trials of a study, in words."""
    envs = [trial.env for trial in store.read().trials] if store else []
    states = [env.machine_state for env in envs if env and env.machine_state]
    found = {_commit(state) for state in states}
    return " and ".join(sorted(found)) or "an unrecorded commit"


def _code_now(tree: SourceTree | None) -> str:
    root = SOURCE_ROOT if tree is None else tree.root
    commit, is_modified = machine_state.read_source_state(root)
    return _commit(MachineState(git_commit=commit, is_source_modified=is_modified))


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


class CodeWatch:
    """The code of a study, to be asked for before and after each of its trials.

    A sweep takes minutes to hours, and starts new processes all the time. What they run
    is what is on disk then: an edit in between would mix two programs in one figure.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        folders: Mapping[str, Path],
        left_out: Sequence[Path],
        root: Path = SOURCE_ROOT,
    ) -> None:
        """Takes the code for unchanged that the plan was made with."""
        self._plan, self._left_out, self._root = plan, left_out, root
        self._folder = None if folders else Path.cwd()
        self._code = None if plan.program_code else code_digest.read_once(root)
        self._found = ""

    def changed(self) -> str:
        """Returns what differs from the plan, or "".

        Once it has differed it stays so, since trials have run meanwhile.
        """
        if not self._found:
            self._found = self._of_program() if self._code is None else self._of_ours()
        return self._found

    def _of_program(self) -> str:
        if self._folder is None:
            return ""
        command = _program_of(self._plan).command
        source = identity.find_repository(self._folder, self._left_out)
        now = identity.of_program(command, self._folder, source, self._left_out)
        planned = self._plan.program_code[""]
        if "python" in planned and "python" not in now:
            raise PlanError(
                f"the interpreter of --command {command!r} does not say its version any"
                " more, so the code that is measured is unknown; start it by hand, and"
                " repeat the command when it answers"
            )
        # What the program writes beside itself is no change of it, if it is new.
        made = () if source is None else map(identity.key_of_change, source.untracked)
        new = {name for name in now if name.startswith("file ")}.union(made)
        for name in new.difference(planned):
            now.pop(name, None)
        return next(iter(identity.differences(planned, now)), "")

    def _of_ours(self) -> str:
        assert self._code is not None
        found = identity.differences(self._code, code_digest.read(self._root))
        if found:
            return f"{found[0]}{_more(found)}"
        return code_digest.changed_plugin(self._plan)
