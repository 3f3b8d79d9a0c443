"""One study on disk: plain files without an index, written atomically.

::

    runs/<study>/
      plan.json
      trials/<trial_id>/
        spec.json  env.json  result.json  status.json    status is written last
        rank_<k>.jsonl  stdout.log  stderr.log           written by the trial itself
        blocks.jsonl                                     load within each block
      earlier/<trial_id>-<k>/                            attempts that were repeated
      match/trials/<trial_id>/                           N replicas against one, untimed
      gate.json  report/index.html  SHA256SUMS

A trial's folder is named by a hash of its spec, so folders of a study can be joined.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import pathlib
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import pydantic

from results import errors
from results.records import identity, models, program, schema, texts
from results.store import manifest, public, untrusted, writing

Before = Callable[[pathlib.Path, pathlib.Path], None]


RecordT = TypeVar("RecordT", bound=models.Record)

_MOST_OF_PLACE = 200
_ANOTHER = "choose a path this user can write to"
_TEXT_OF_A_FIELD: Final = re.compile(r", got ['\"\[{].*")
_WITHOUT_USER_FOLDERS = ("env", "status", "result")
"""A plan and a spec name the data to read, and are what an id is made of. The command
of a plan is only shown."""


def read_record(path: pathlib.Path, kind: str, model: type[RecordT]) -> RecordT | None:
    """Reads one record, whole; None if there is no such file."""
    try:
        text = untrusted.read_text(path)
        if text is None:
            return None
    except untrusted.DamagedFileError as error:
        raise errors.CorruptRecordError(path, f"unreadable: {error}") from error
    if kind in _WITHOUT_USER_FOLDERS:
        text = texts.shortened(text)
    try:
        data = schema.current(kind, untrusted.parsed_object(text), path)
        command, variables = data.get("command"), data.get("environment_variables")
        # Older versions chose variables by prefix; not all may be published.
        if isinstance(variables, dict):
            data["environment_variables"] = program.recorded_variables(variables)
        if kind == "plan" and isinstance(command, list):
            data["command"] = [
                texts.shortened(word) if isinstance(word, str) else word
                for word in command
            ]
        return model.model_validate(data)
    except untrusted.DamagedFileError as error:
        raise errors.CorruptRecordError(path, str(error)) from error
    except pydantic.ValidationError as error:
        raise errors.CorruptRecordError(path, first_complaint(error)) from error


def content_of(record: models.Record) -> bytes:
    if isinstance(record, models.Plan):
        command = tuple(map(texts.shortened, record.command))
        record = record.model_copy(update={"command": command})
    text = record.model_dump_json(indent=1) + "\n"
    if not isinstance(record, (models.Plan, models.TrialSpec)):
        text = texts.shortened(text)
    return text.encode("utf-8")


def _write(path: pathlib.Path, content: bytes) -> None:
    """Writes the bytes of a record, and creates its folder if there is none."""
    with writing.reporting(path):
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            writing.sync(path.parent.parent)
        writing.write_bytes(path, content)


def first_complaint(error: pydantic.ValidationError) -> str:
    """Returns one line: the first wrong field, why it is wrong, and its value."""
    first = error.errors(include_url=False)[0]
    # Keys come from the file and can be anything.
    keys = (repr(str(part))[1:-1] for part in first["loc"])
    path = ".".join(keys)[:_MOST_OF_PLACE] or "the record"
    # Deeply nested or very long values are abbreviated.
    return f"{path}: {first['msg']}, got {reprlib.repr(first['input'])}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The records of one trial."""

    trial_id: str  # The folder's name.
    spec: models.TrialSpec  # The configuration.
    env: models.Environment | None  # The machine, or None before the trial has started.
    status: models.StatusRecord | None  # How it ended, or None while it has not.
    result: models.TrialResult | None  # The observations, or None where there are none.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one reading of a study found."""

    trials: tuple[Trial, ...]  # The readable trials by id, including unfinished ones.
    problems: tuple[errors.CorruptRecordError, ...]  # The damaged records, by path.


PLAN_NAME = "plan.json"
VARIED_NAME = "vary.json"
"""In a folder of studies that differ in one setting (``results.store.studies``)."""
TRIALS_NAME = "trials"
EQUIVALENCE_NAME = "match"


class Store:
    """One study directory.

    Attributes:
      root: The study directory.
      is_public: Whether records are read without what may not leave the machine.
    """

    def __init__(
        self,
        root: pathlib.Path,
        *,
        listed_in: pathlib.Path | None = None,
        is_public: bool = False,
    ) -> None:
        """Wraps a directory without looking at it; prefer ``create`` and ``open``."""
        self.root = pathlib.Path(root)
        self.is_public = is_public
        self._listed_in = self.root if listed_in is None else listed_in

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    @classmethod
    def create(cls, root: pathlib.Path) -> Store:
        """Creates a study directory, or opens an existing one.

        Raises OpenStoreError where there is something else, WriteStoreError where it
        cannot be written, NewerSchemaError for a study of a newer version.
        """
        root = pathlib.Path(root)
        _check_reachable(root)
        for path in (root, *root.parents):
            if path.exists() and not path.is_dir():
                raise errors.OpenStoreError(
                    f"study directory {str(root)!r}: {str(path)!r} is a file; choose "
                    "another study name or another runs directory"
                )
        with writing.reporting(root, _ANOTHER, what="study directory "):
            others = untrusted.names_in(root) if not _looks_like_study(root) else ()
            if not all(name.startswith(".") for name in others):
                raise errors.OpenStoreError(
                    f"study directory {str(root)!r} holds files but no study (neither "
                    f"{PLAN_NAME} nor {TRIALS_NAME}/); choose an empty or new one"
                )
            (root / TRIALS_NAME).mkdir(parents=True, exist_ok=True)
            if not os.access(root / TRIALS_NAME, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        store = cls(root)
        store._read_plan_or_none()
        return store

    @classmethod
    def open(cls, root: pathlib.Path) -> Store:
        """Opens a study to read it; raises OpenStoreError or NewerSchemaError."""
        root = pathlib.Path(root)
        _check_reachable(root)
        path, trials = repr(str(root)), root / TRIALS_NAME
        start = "start one with 'sweep', or check the name"
        why_not = ""
        if not untrusted.is_there(root):
            why_not = f"no study at {path}: the directory does not exist; {start}"
        elif not root.is_dir():
            why_not = (
                f"{path} is a file, must be a study directory (the folder that holds"
                f" {PLAN_NAME})"
            )
        elif untrusted.is_there(root / VARIED_NAME):
            why_not = (
                f"{path} is a parameter sweep, whose folders are studies; name one of"
                " them ('list studies' has them)"
            )
        elif not _looks_like_study(root):
            why_not = (
                f"no study at {path}: it holds neither {PLAN_NAME} nor {TRIALS_NAME}/;"
                f" {start}"
            )
        elif untrusted.is_there(trials) and not trials.is_dir():
            why_not = (
                f"no study at {path}: its {TRIALS_NAME} is not a directory, must be the"
                " folder of the trials; restore it from a copy"
            )
        if why_not:
            raise errors.OpenStoreError(why_not)
        store = cls(root)
        # A corrupt plan is raised by read_plan(); trials stay readable.
        with contextlib.suppress(errors.CorruptRecordError):
            store._read_plan_or_none()
        return store

    def trial_dir(self, trial_id: str) -> pathlib.Path:
        """Returns the folder of one trial; it may not exist yet."""
        return self.root / TRIALS_NAME / trial_id

    @property
    def equivalence(self) -> Store:
        """The trials that match N replicas with one; they have no plan of their own."""
        return Store(
            self.root / EQUIVALENCE_NAME, listed_in=self.root, is_public=self.is_public
        )

    @property
    def public(self) -> Store:
        """The study as it may leave the machine (``results.store.public``)."""
        return Store(self.root, listed_in=self._listed_in, is_public=True)

    @property
    def report_path(self) -> pathlib.Path:
        """Default path of the HTML report."""
        return self.root / "report" / "index.html"

    # All that writes raises WriteStoreError where it cannot.

    def write_plan(self, plan: models.Plan) -> None:
        """Writes the plan."""
        self.write_listed(PLAN_NAME, plan)

    def write_listed(self, name: str, record: models.Record) -> None:
        """Writes a record of the whole study."""
        content = content_of(record)
        self.list_file(name, content)
        _write(self.root / name, content)

    def list_file(self, name: str, content: bytes | None = None) -> None:
        """Lists a file in the manifest, as it is now or as it is written next."""
        path = self.root / name
        own = manifest.digest_of(path) if content is None else manifest.digest(content)
        self._list(name, {name: own})

    def read_plan(self) -> models.Plan:
        """Reads the plan; raises as ``read_trial``."""
        plan = self._read_plan_or_none()
        if plan is None:
            raise errors.MissingRecordError(
                f"study {str(self.root)!r} has no {PLAN_NAME}; run the sweep that "
                "made it again: finished trials are kept"
            )
        return plan

    def write_spec(self, trial_id: str, spec: models.TrialSpec) -> None:
        """Writes a trial's spec."""
        _write(self.trial_dir(trial_id) / "spec.json", content_of(spec))

    def write_env(self, trial_id: str, env: models.Environment) -> None:
        """Writes a trial's machine record."""
        _write(self.trial_dir(trial_id) / "env.json", content_of(env))

    def write_result(self, trial_id: str, result: models.TrialResult) -> None:
        """Writes a trial's observations."""
        _write(self.trial_dir(trial_id) / "result.json", content_of(result))

    def write_status(self, trial_id: str, status: models.StatusRecord) -> None:
        """Writes a trial's status, which completes it."""
        folder, content = self.trial_dir(trial_id), content_of(status)
        with writing.reporting(folder, "free space or choose another directory"):
            if folder.is_dir():
                writing.sync_files(folder)
        self.list_trial(trial_id, {"status.json": manifest.digest(content)})
        _write(folder / "status.json", content)

    def list_trial(self, trial_id: str, also: Mapping[str, str] | None = None) -> None:
        """Lists the files of a trial in the manifest, as they are now."""
        self.list_earlier(self.trial_dir(trial_id), self.trial_dir(trial_id), also)

    def list_earlier(
        self,
        trial_dir: pathlib.Path,
        kept: pathlib.Path,
        also: Mapping[str, str] | None = None,
    ) -> None:
        """Lists the files of a trial where they are moved next."""
        try:
            files = manifest.evidence_in(trial_dir) | dict(also or {})
        except untrusted.DamagedFileError as error:
            raise errors.WriteStoreError(
                f"cannot list {str(trial_dir)!r}: {error}; remove it, and run the trial"
                " again"
            ) from error
        owner = kept.relative_to(self._listed_in).as_posix()
        self._list(owner, {f"{owner}/{name}": one for name, one in files.items()})

    def _list(self, owner: str, files: Mapping[str, str]) -> None:
        path = self._listed_in / manifest.MANIFEST_NAME
        try:
            with writing.reporting(path):
                self._listed_in.mkdir(parents=True, exist_ok=True)
                manifest.renew(self._listed_in, owner, files)
        except untrusted.DamagedFileError as error:
            raise errors.WriteStoreError(
                f"cannot write {str(path)!r}: {error}; remove it"
            ) from error

    def trial_ids(self) -> tuple[str, ...]:
        """Returns the ids of all trials with a spec or a status, sorted."""
        trials = self.root / TRIALS_NAME
        return tuple(
            name
            for name in sorted(untrusted.names_in(trials))
            if untrusted.names_in(trials / name) & {"spec.json", "status.json"}
        )

    def read_trial(self, trial_id: str) -> Trial:
        """Reads all records of one trial.

        Raises MissingRecordError, CorruptRecordError (unreadable, or of another trial),
        NewerSchemaError, or UnavailableRecordError (the file system does not say).
        """
        folder = self.trial_dir(trial_id)
        names = untrusted.names_in(folder)

        def read(kind: str) -> Any:
            path = folder / f"{kind}.json"
            if path.name not in names:
                return None
            record = read_record(path, kind, schema.MODELS[kind])
            if record is None:  # a file system that lists it and has no file
                raise errors.UnavailableRecordError(
                    path, FileNotFoundError("it is listed, and is not there")
                )
            return record

        found = {kind: read(kind) for kind in ("spec", "env", "status", "result")}
        spec, status = found["spec"], found["status"]
        if spec is None and status is None:
            raise errors.MissingRecordError(
                f"no trial {trial_id!r} in {str(self.root)!r}; ids are the names "
                f"of the folders in {TRIALS_NAME}/"
            )
        if spec is None:
            raise errors.CorruptRecordError(
                folder / "spec.json", "missing, though the trial has a status"
            )
        identity.check_trial(folder, spec, status, found["result"])
        shown = {kind: self.shown(record) for kind, record in found.items()}
        return Trial(trial_id=trial_id, **shown)

    def shown(self, record: models.Record | None) -> Any:
        """Returns a record that was read whole as this store shows it."""
        return public.record_of(record) if record and self.is_public else record

    def read(self) -> Reading:
        """Reads all trials once, and the plan to see whether it is damaged.

        Raises NewerSchemaError or UnavailableRecordError.
        """
        problems: list[errors.CorruptRecordError] = []
        with self._kept(problems):
            self._read_plan_or_none()
        trials = []
        for name in sorted(untrusted.names_in(self.root / TRIALS_NAME)):
            # Nothing in a folder is no trial, as in trial_ids(): it is listed once.
            with self._kept(problems), contextlib.suppress(errors.MissingRecordError):
                trials.append(self.read_trial(name))
        return Reading(trials=tuple(trials), problems=tuple(problems))

    def trials(self) -> Iterator[Trial]:
        """Yields all trials by id, unfinished ones too; raises as ``read_trial``."""
        return map(self.read_trial, self.trial_ids())

    @contextlib.contextmanager
    def _kept(self, problems: list[errors.CorruptRecordError]) -> Iterator[None]:
        """Keeps a damaged record in a list, in place of the error."""
        try:
            yield
        except errors.CorruptRecordError as error:
            named = _TEXT_OF_A_FIELD.sub("", error.reason)
            reason = texts.shared(named) if self.is_public else error.reason
            problems.append(errors.CorruptRecordError(error.path, reason))

    def _read_plan_or_none(self) -> models.Plan | None:
        path = self.root / PLAN_NAME
        plan = read_record(path, "plan", models.Plan)
        if plan is not None:
            identity.check_plan(path, plan)
        return self.shown(plan)


def _check_reachable(root: pathlib.Path) -> None:
    try:
        writing.check_reachable(root)
    except OSError as error:
        raise errors.OpenStoreError(
            f"cannot use {str(root)!r} as a study directory: "
            f"{error.strerror or error}; choose another path, or fix this one"
        ) from error


def _looks_like_study(root: pathlib.Path) -> bool:
    names = untrusted.names_in(root)
    return PLAN_NAME in names or (
        TRIALS_NAME in names and (root / TRIALS_NAME).is_dir()
    )


# A trial is measured again where its repetition was interrupted, or where its failure
# is retried. What is there then is moved by one rename, whole, to
# ``earlier/<trial_id>-<k>``: nothing that was measured is lost, however the next
# attempt ends. No figure is made of it. ``status`` counts it, and ``verify`` finds
# there what was listed and is not measured again yet.

EARLIER_NAME: Final = "earlier"
_CONCLUDED: Final = {"status.json", "result.json", "blocks.jsonl", "turns.jsonl"}
_RANK_FILE: Final = re.compile(r"rank_\d{1,6}\.jsonl")
_OBSERVATION: Final = re.compile(rb'"kind": "(?:step|reading|change|failure)"')


def is_measured(trial_dir: pathlib.Path) -> bool:
    """Whether an attempt observed anything: a step, a number, or its own failure."""
    names = untrusted.names_in(trial_dir)
    if names & _CONCLUDED:
        return True
    for name in filter(_RANK_FILE.fullmatch, names):
        try:
            content = untrusted.read_bytes(trial_dir / name) or b""
        except untrusted.DamagedFileError:
            return True  # what it is, is not for a sweep to decide
        if _OBSERVATION.search(content):
            return True
    return False


def keep_earlier(trial_dir: pathlib.Path, before: Before | None = None) -> pathlib.Path:
    """Moves the folder of a trial to those of earlier attempts; returns where it is."""
    folder = trial_dir.parent.with_name(EARLIER_NAME)
    if folder.is_symlink():  # it leads out of the study
        raise NotADirectoryError(errno.ENOTDIR, f"{EARLIER_NAME} is a symbolic link")
    folder.mkdir(exist_ok=True)
    taken = untrusted.names_in(folder)
    names = (f"{trial_dir.name}-{number}" for number in itertools.count(1))
    kept = folder / next(name for name in names if name not in taken)
    if before is not None:
        before(trial_dir, kept)
    trial_dir.rename(kept)
    writing.sync(folder)
    writing.sync(trial_dir.parent)
    return kept


def attempts(root: pathlib.Path, trial_id: str = "") -> list[pathlib.Path]:
    """Returns the folders of earlier attempts of a study, or of one of its trials."""
    folder = root / EARLIER_NAME
    pattern = re.compile(rf"{re.escape(trial_id) or '.+'}-\d+")
    names = sorted(filter(pattern.fullmatch, untrusted.names_in(folder)))
    return [folder / name for name in names]
