"""Brings the stores that several machines filled for one study into one store.

The result is built beside its place and renamed into it, so that it is there as a whole
or not at all, and the inputs are only read. It does not depend on their order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from results.errors import MergeError, WriteStoreError
from results.records.models import Order, TrialStatus
from results.store import atomic, untrusted
from results.store.lock import lock_study
from results.store.study_store import MATCHING_NAME, TRIALS_NAME, Store
from results.study import merge_plans, study_differences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from results.records.models import Environment
    from results.store.stored_trial import Problem, Trial

FEWEST_STORES = 2
_MOST_FACTS = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """What was merged.

    Attributes:
      root: The new study directory.
      num_trials: Its trials, without those that match.
      num_matching: Its trials that match N replicas with one.
      num_unfinished: Trials that no store has finished; they are left out, and the
        study is resumed to measure them.
    """

    root: Path
    num_trials: int
    num_matching: int
    num_unfinished: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A trial and the store that has it."""

    store: Store
    trial: Trial

    @property
    def folder(self) -> Path:
        return self.store.trial_dir(self.trial.trial_id)


def merge(roots: Sequence[Path], output: Path) -> Merged:
    """Merges stores of one study into a new one.

    A trial has one result: one that two stores have finished is an error. A generation
    of a relay is compared turn by turn, so it comes from one store. Trials that match N
    replicas with one are not timed, and every machine runs them: of several, one that
    is not ok is kept, else any.

    Args:
      roots: Study directories, at least two.
      output: The new study directory; it must not exist.

    Raises:
      MergeError: They cannot become one study; the message names two of them.
      ResultsError: One cannot be read, or the result cannot be written.
    """
    stores = _open(roots, output)
    with contextlib.ExitStack() as locks:
        for store in stores:
            if os.access(store.root, os.W_OK):  # nobody here writes into others
                locks.enter_context(lock_study(store.root))
        plan = merge_plans.merged(
            {str(store.root): store.read_plan() for store in stores}
        )
        finished, num_unfinished = _finished(stores)
        _check_one_machine(finished)
        _check_generations(finished)
        matching = _matching_trials(stores)
        folders = [(TRIALS_NAME, found) for found in finished.values()]
        folders += [
            (f"{MATCHING_NAME}/{TRIALS_NAME}", found) for found in matching.values()
        ]
        with _beside(output) as root:
            merged = Store.create(root)
            merged.write_plan(plan)
            for below, found in folders:
                _copy(found.folder, root / below / found.trial.trial_id)
                part = merged if below == TRIALS_NAME else merged.matching
                part.seal_trial(found.trial.trial_id)
    return Merged(
        root=output,
        num_trials=len(finished),
        num_matching=len(matching),
        num_unfinished=num_unfinished,
    )


def _open(roots: Sequence[Path], output: Path) -> list[Store]:
    if len(roots) < FEWEST_STORES:
        raise MergeError(
            f"only {len(roots)} store is given; name at least {FEWEST_STORES} stores of"
            " one study"
        )
    seen: dict[Path, Path] = {}
    for root in roots:
        place = Path(os.path.realpath(root))
        if place in seen:
            raise MergeError(f"{str(root)!r} is given twice; name every store once")
        if Path(os.path.realpath(output)).is_relative_to(place):
            raise MergeError(
                f"the output {str(output)!r} is inside of the store {str(root)!r};"
                " choose a directory beside the stores"
            )
        seen[place] = root
    is_free = not untrusted.is_there(output) or (
        output.is_dir() and not output.is_symlink() and not any(output.iterdir())
    )
    if not is_free:
        raise MergeError(
            f"the output {str(output)!r} exists; choose a new directory, or name that"
            " study among the stores and write to a new one"
        )
    return [Store.open(root) for root in roots]


def _finished(stores: Sequence[Store]) -> tuple[dict[str, _Found], int]:
    """Returns the finished trials by id, and how many others there are."""
    found: dict[str, _Found] = {}
    unfinished: set[str] = set()
    for store in stores:
        reading = store.read()
        _check_readable(reading.problems)
        for trial in reading.trials:
            if trial.status is None:
                unfinished.add(trial.trial_id)
                continue
            if trial.trial_id in found:
                first = found[trial.trial_id].store
                raise MergeError(
                    f"trial {trial.trial_id} is finished in {str(first.root)!r} and in"
                    f" {str(store.root)!r}, and a trial has one result; remove its"
                    f" folder ({TRIALS_NAME}/{trial.trial_id}) from the store whose"
                    " result is not to be used"
                )
            found[trial.trial_id] = _Found(store=store, trial=trial)
    return dict(sorted(found.items())), len(unfinished - set(found))


def _check_readable(problems: Iterable[Problem]) -> None:
    for problem in problems:
        raise MergeError(
            f"{str(problem.path)!r} cannot be read: {problem.reason}; restore it from a"
            " copy, or remove its folder and measure it again, then merge"
        )


def _check_one_machine(finished: Mapping[str, _Found]) -> None:
    """Figures of a study are ratios of its trials: all are of one machine class.

    Raises:
      MergeError: They are not; names two stores and what differs.
    """
    first: tuple[_Found, Environment] | None = None
    for found in finished.values():
        env = found.trial.env
        if env is None:
            continue
        if first is None:
            first = found, env
        elif first[1].fingerprint != env.fingerprint:
            raise MergeError(_unlike(*first, found, env))


def _unlike(
    found: _Found, env: Environment, other: _Found, other_env: Environment
) -> str:
    facts = study_differences.of_machines(env, other_env)
    listed = ", ".join(facts[:_MOST_FACTS]) or "their fingerprints"
    where, other_where = str(found.store.root), str(other.store.root)
    places = f"{where!r} and {other_where!r} were"
    if where == other_where:
        places = f"the trials of {where!r} were"
    return (
        f"{places} measured on unlike machines ({env.machine_name} /"
        f" {other_env.machine_name}; they differ in {listed}), and unlike machines"
        " never share a figure; keep one study per kind of machine, and show them"
        " beside each other with 'report'"
    )


def _check_generations(finished: Mapping[str, _Found]) -> None:
    """Trials of one generation of a relay took turns on one machine.

    Raises:
      MergeError: Two stores have parts of one.
    """
    stores: dict[int, Store] = {}
    for found in finished.values():
        spec = found.trial.spec
        if spec.order is not Order.RELAY or spec.budget is not None:
            continue
        first = stores.setdefault(spec.repetition_index, found.store)
        if first.root != found.store.root:
            raise MergeError(
                f"generation {spec.repetition_index} of the relay is partly in"
                f" {str(first.root)!r} and partly in {str(found.store.root)!r}, but its"
                " trials are compared turn by turn; measure every generation on one"
                " machine"
            )


def _matching_trials(stores: Sequence[Store]) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for store in stores:
        matching = store.matching
        reading = matching.read()
        _check_readable(reading.problems)
        for trial in reading.trials:
            if trial.status is None:
                continue
            mine = _Found(store=matching, trial=trial)
            kept = found.setdefault(trial.trial_id, mine)
            found[trial.trial_id] = min(kept, mine, key=_preference)
    return dict(sorted(found.items()))


def _preference(found: _Found) -> tuple[bool, str]:
    """Failures first, so that none is hidden; then whatever the order of stores."""
    status = found.trial.status
    is_ok = status is not None and status.status is TrialStatus.OK
    content = hashlib.blake2b()
    for path in untrusted.paths_below(found.folder):
        content.update(os.fsencode(path.relative_to(found.folder)))
        if path.is_file():
            content.update(untrusted.read_bytes(path) or b"")
    return is_ok, content.hexdigest()


@contextlib.contextmanager
def _beside(output: Path) -> Iterator[Path]:
    """Yields a new directory, which becomes the output when the block succeeds.

    What a killed merge left there is removed first.

    Raises:
      WriteStoreError: It cannot be written.
    """
    work = output.parent / f".merging-{output.name}"
    try:
        work.mkdir(parents=True, exist_ok=True)
        with lock_study(work):
            root = work / "study"
            shutil.rmtree(root, ignore_errors=True)
            try:
                yield root
                root.rename(output)
            finally:
                shutil.rmtree(work, ignore_errors=True)
        atomic.sync_or_remove(output)
    except OSError as error:
        raise WriteStoreError(
            f"cannot write {str(output)!r}: {error.strerror or error}; free space or"
            " choose a directory that this user can write to; the stores are unchanged"
        ) from error


def _copy(folder: Path, target: Path) -> None:
    """Copies the files of a trial, as they are."""
    for path in untrusted.paths_below(folder):
        copied = target / path.relative_to(folder)
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise MergeError(
                f"{str(path)!r} is not a regular file; replace it by a copy of what it"
                " stands for, or remove it, then merge"
            )
        if path.is_dir():
            copied.mkdir(parents=True, exist_ok=True)
        elif not path.name.startswith(atomic.TEMPORARY_PREFIX):
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)
