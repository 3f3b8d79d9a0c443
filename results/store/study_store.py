"""One study on disk: plain files without an index, written atomically.

::

    runs/<study>/
      plan.json
      trials/<trial_id>/
        spec.json  env.json  result.json  status.json    status is written last
        rank_<k>.jsonl  stdout.log  stderr.log           written by the trial itself
        turns.jsonl                                      load within each turn
    match/trials/<trial_id>/     as above: N replicas are matched with one, untimed
      report/index.html

Stores of one study can be merged (``results.study.merge``), because a trial's folder is
named by a hash of its spec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
from typing import TYPE_CHECKING

from results import errors
from results.records import consistency
from results.records.models import (
    Environment,
    Plan,
    StatusRecord,
    TrialResult,
    TrialSpec,
)
from results.store import atomic, record_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLAN_NAME = "plan.json"
TRIALS_NAME = "trials"
MATCHING_NAME = "match"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The records of one trial.

    Attributes:
      trial_id: The folder's name.
      spec: The configuration.
      env: The machine, or None before the trial has started.
      status: How it ended, or None while it has not.
      result: The observations, or None where there are none.
    """

    trial_id: str
    spec: TrialSpec
    env: Environment | None
    status: StatusRecord | None
    result: TrialResult | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A record that cannot be read, and the reason in one line."""

    path: pathlib.Path
    reason: str

    @property
    def label(self) -> str:
        """Folder and file name, printable and valid UTF-8."""
        return repr(f"{self.path.parent.name}/{self.path.name}")[1:-1]


class Store:
    """One study directory.

    Attributes:
      root: The study directory.
    """

    def __init__(self, root: pathlib.Path) -> None:
        """Wraps a directory without looking at it; prefer ``create`` and ``open``."""
        self.root = pathlib.Path(root)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    @classmethod
    def create(cls, root: pathlib.Path) -> Store:
        """Creates a study directory, or opens an existing one.

        Raises:
          OpenStoreError: ``root`` is a file, or a folder that is not a study.
          WriteStoreError: ``root`` cannot be created or written.
          NewerSchemaError: A newer version made the study.
        """
        root = pathlib.Path(root)
        _check_reachable(root)
        for path in (root, *root.parents):
            if path.exists() and not path.is_dir():
                raise errors.OpenStoreError(
                    f"study directory {str(root)!r}: {str(path)!r} is a file; choose "
                    "another study name or another runs directory"
                )
        try:
            holds_other_things = root.is_dir() and not _looks_like_study(root)
            if holds_other_things and any(
                not entry.name.startswith(".") for entry in root.iterdir()
            ):
                raise errors.OpenStoreError(
                    f"study directory {str(root)!r} holds files but no study (neither "
                    f"{PLAN_NAME} nor {TRIALS_NAME}/); choose an empty or new one"
                )
            (root / TRIALS_NAME).mkdir(parents=True, exist_ok=True)
            if not os.access(root / TRIALS_NAME, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise errors.WriteStoreError(
                f"cannot write study directory {str(root)!r}: "
                f"{error.strerror or error}; choose a path "
                "this user can write to"
            ) from error
        store = cls(root)
        store._read_plan_or_none()
        return store

    @classmethod
    def open(cls, root: pathlib.Path) -> Store:
        """Opens a study to read it.

        Raises:
          OpenStoreError: ``root`` is missing, a file, or holds no study.
          NewerSchemaError: A newer version made the study.
        """
        root = pathlib.Path(root)
        _check_reachable(root)
        if not root.exists():
            raise errors.OpenStoreError(
                f"no study at {str(root)!r}: the directory does not exist; start one "
                "with 'sweep', or check the name"
            )
        if not root.is_dir():
            raise errors.OpenStoreError(
                f"{str(root)!r} is a file, must be a study directory (the folder that "
                f"holds {PLAN_NAME})"
            )
        if not _looks_like_study(root):
            raise errors.OpenStoreError(
                f"no study at {str(root)!r}: it holds neither {PLAN_NAME} nor "
                f"{TRIALS_NAME}/; start one with 'sweep', or check the name"
            )
        trials = root / TRIALS_NAME
        if os.path.lexists(trials) and not trials.is_dir():
            raise errors.OpenStoreError(
                f"no study at {str(root)!r}: its {TRIALS_NAME} is not a directory, "
                "must be the folder of the trials; restore it from a copy"
            )
        store = cls(root)
        # A corrupt plan is listed by corrupt() and raised by read_plan(); the trials
        # stay readable.
        with contextlib.suppress(errors.CorruptRecordError):
            store._read_plan_or_none()
        return store

    def trial_dir(self, trial_id: str) -> pathlib.Path:
        """Returns the folder of one trial; it may not exist yet."""
        return self.root / TRIALS_NAME / trial_id

    @property
    def matching(self) -> Store:
        """The trials that match N replicas with one; they have no plan of their own."""
        return Store(self.root / MATCHING_NAME)

    @property
    def report_path(self) -> pathlib.Path:
        """Default path of the HTML report."""
        return self.root / "report" / "index.html"

    def write_plan(self, plan: Plan) -> None:
        """Writes the plan.

        Raises:
          WriteStoreError: The file cannot be written.
        """
        record_file.write(self.root / PLAN_NAME, plan)

    def read_plan(self) -> Plan:
        """Reads the plan.

        Raises:
          MissingRecordError: There is no plan.
          CorruptRecordError: It cannot be read.
          NewerSchemaError: A newer version wrote it.
        """
        plan = self._read_plan_or_none()
        if plan is None:
            raise errors.MissingRecordError(
                f"study {str(self.root)!r} has no {PLAN_NAME}; run the sweep that "
                "made it again: finished trials are kept"
            )
        return plan

    def write_spec(self, trial_id: str, spec: TrialSpec) -> None:
        """Writes a trial's spec; raises WriteStoreError if it cannot."""
        record_file.write(self.trial_dir(trial_id) / "spec.json", spec)

    def write_env(self, trial_id: str, env: Environment) -> None:
        """Writes a trial's machine record; raises WriteStoreError if it cannot."""
        record_file.write(self.trial_dir(trial_id) / "env.json", env)

    def write_result(self, trial_id: str, result: TrialResult) -> None:
        """Writes a trial's observations; raises WriteStoreError if it cannot."""
        record_file.write(self.trial_dir(trial_id) / "result.json", result)

    def write_status(self, trial_id: str, status: StatusRecord) -> None:
        """Writes a trial's status, which completes it; raises WriteStoreError."""
        record_file.write(self.trial_dir(trial_id) / "status.json", status)

    def trial_ids(self) -> tuple[str, ...]:
        """Returns the ids of all trials that have a spec or a status, sorted.

        A folder with neither was left by a harness killed before the trial started.
        """
        trials = self.root / TRIALS_NAME
        if not trials.is_dir():
            return ()
        try:
            names = sorted(os.listdir(trials))  # noqa: PTH208 - only names are needed
        except OSError as error:
            raise errors.OpenStoreError(
                f"cannot list {str(trials)!r}: {error.strerror or error}; let this "
                "user read it"
            ) from error
        return tuple(
            name
            for name in names
            if _may_exist(trials / name / "spec.json")
            or _may_exist(trials / name / "status.json")
        )

    def read_trial(self, trial_id: str) -> Trial:
        """Reads all records of one trial.

        Raises:
          MissingRecordError: There is no such trial.
          CorruptRecordError: One of its records is unreadable or of another trial.
          NewerSchemaError: A newer version wrote one of them.
        """
        folder = self.trial_dir(trial_id)
        spec = record_file.read(folder / "spec.json", "spec", TrialSpec)
        env = record_file.read(folder / "env.json", "env", Environment)
        status = record_file.read(folder / "status.json", "status", StatusRecord)
        result = record_file.read(folder / "result.json", "result", TrialResult)
        if spec is None:
            if status is None:
                raise errors.MissingRecordError(
                    f"no trial {trial_id!r} in {str(self.root)!r}; ids are the names "
                    f"of the folders in {TRIALS_NAME}/"
                )
            raise errors.CorruptRecordError(
                folder / "spec.json", "missing, though the trial has a status"
            )
        consistency.check_trial(folder, spec, status, result)
        return Trial(
            trial_id=trial_id, spec=spec, env=env, status=status, result=result
        )

    def trials(self) -> Iterator[Trial]:
        """Yields the readable trials by id, including unfinished ones.

        Corrupt ones are skipped; ``corrupt`` lists them.

        Raises:
          NewerSchemaError: A newer version wrote one, so it cannot be interpreted.
        """
        for trial_id in self.trial_ids():
            try:
                trial = self.read_trial(trial_id)
            except errors.CorruptRecordError:
                continue
            yield trial

    def corrupt(self) -> list[Problem]:
        """Returns the records that cannot be read, by path.

        Raises:
          NewerSchemaError: A newer version wrote one of the records.
        """
        reads: list[Callable[[], object]] = [self._read_plan_or_none]
        reads += [
            functools.partial(self.read_trial, trial_id)
            for trial_id in self.trial_ids()
        ]
        problems = (_problem_of(read) for read in reads)
        return [problem for problem in problems if problem is not None]

    def _read_plan_or_none(self) -> Plan | None:
        path = self.root / PLAN_NAME
        plan = record_file.read(path, "plan", Plan)
        if plan is not None:
            consistency.check_plan(path, plan)
        return plan


def _check_reachable(root: pathlib.Path) -> None:
    try:
        atomic.check_reachable(root)
    except OSError as error:
        raise errors.OpenStoreError(
            f"cannot use {str(root)!r} as a study directory: "
            f"{error.strerror or error}; choose another path, or fix this one"
        ) from error


def _may_exist(path: pathlib.Path) -> bool:
    """Whether there is a file, or whether that cannot be determined.

    An inaccessible path counts as existing: reading it reports the reason.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _problem_of(read: Callable[[], object]) -> Problem | None:
    try:
        read()
    except errors.CorruptRecordError as error:
        return Problem(path=error.path, reason=error.reason)
    return None


def _looks_like_study(root: pathlib.Path) -> bool:
    return (root / PLAN_NAME).exists() or (root / TRIALS_NAME).is_dir()
