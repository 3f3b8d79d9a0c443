"""Studies of a sweep: their names, where they are, and the plan of a new one."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from harness import catalog
from harness.errors import ParseError, PlanError, StudyError
from harness.options import option
from harness.options.kinds import Kind, parse_key_values
from harness.planning.plan import digest_of
from harness.planning.request import SweepRequest
from results.records.models import Control, Plan
from results.store import untrusted
from results.store.manifest import MANIFEST_NAME
from results.store.studies import DATA, GLOBAL, MOST_VALUES, PER_REPLICA
from results.store.study_store import PLAN_NAME, Store
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.planning.checked import CheckedSweep
    from results.study.cases import Study


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def default_name(sweep: CheckedSweep) -> str:
    """Returns ``<workload>-<preset>-<8 hex>``: the same sweep resumes its study."""
    of = sweep.common
    return f"{of['workload']}-{of['preset']}-{digest_of(sweep)[:8]}"


def check_name(name: str) -> str:
    """Returns ``name`` if it is a valid study name."""
    if _NAME.fullmatch(name) is None:
        raise StudyError(
            f"--study {name!r} is not a study name; allowed are up to 100 letters,"
            " digits and . _ + -, starting with a letter or digit; the directory"
            " around it is --runs-dir"
        )
    return name


def find_study(text: str, runs_dir: Path) -> Path:
    """Returns the directory of an existing study, given by name or by path."""
    if not text.strip():
        raise StudyError(
            f"study {text!r} is empty; name a study in {str(runs_dir)!r} or give the"
            " path of a study directory"
        )
    in_runs = runs_dir / text
    is_in_runs = untrusted.is_there(in_runs) or not untrusted.is_there(Path(text))
    return in_runs if is_in_runs else Path(text)


def load(text: str, runs_dir: Path) -> Study:
    """Reads a study from which something is concluded, given by name or by path."""
    study = load_study(Store.open(find_study(text, runs_dir)))
    if study.problems:
        first, more = study.problems[0], len(study.problems) - 1
        others = f" (and {more} more, see 'status')" if more else ""
        raise StudyError(
            f"study {study.plan.study!r} has a damaged record, {str(first.path)!r}:"
            f" {first.reason}{others}; without it the figures would be others: restore"
            " it from a copy, or remove its folder and measure it again with"
            " 'sweep --study'"
        )
    return study


def read_existing_plan(root: Path) -> Plan | None:
    """Returns the plan in ``root``, or None if there is no study yet."""
    if not untrusted.is_there(root):
        return None
    if not root.is_dir():
        raise StudyError(
            f"{str(root)!r} is a file, but a study is a directory; choose another"
            " --study or move the file away"
        )
    if untrusted.is_there(root / PLAN_NAME):
        return Store.open(root).read_plan()
    others = sorted(p.name for p in root.iterdir() if not p.name.startswith("."))
    # A harness that begins it may have come no further yet, or have ended there.
    others = [name for name in others if name not in ("trials", MANIFEST_NAME)]
    if others:
        raise StudyError(
            f"{str(root)!r} is not a study: it has {others[0]!r} but no {PLAN_NAME};"
            " choose another --study or empty the directory"
        )
    return None


def check_trials(plan: Plan) -> None:
    """Checks that every trial of a stored plan can be started."""
    if not plan.trials:
        raise StudyError(
            f"the plan of study {plan.study!r} has no trials, so there is nothing to"
            " resume; run a sweep"
        )
    for trial in plan.trials:
        spec = trial.spec
        if spec.program is not None and spec.backend not in catalog.PEERS:
            continue
        catalog.adopt(spec)
        catalog.workload(spec.workload)
        most = catalog.backend(spec.backend).max_replicas
        if spec.control is Control.SOLO:  # a program per replica
            continue
        if most is not None and spec.num_replicas > most:
            raise PlanError(
                f"the plan of study {plan.study!r} has {spec.num_replicas} replicas on"
                f" backend {spec.backend!r}, which runs at most {most}; plan the sweep"
                " again"
            )


RequestT = TypeVar("RequestT", bound=SweepRequest)

OPTIONS: Final = (DATA, PER_REPLICA, GLOBAL)
"""Options that can be varied; every other key is an option of the workload."""
_FEWEST: Final = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What is varied."""

    key: str  # One of ``OPTIONS``, or an option of the workload.
    values: tuple[str, ...]  # As they were written.

    def words(self, value: str) -> tuple[str, str]:
        """Returns the words of a command that has one of the values."""
        if self.key in OPTIONS:
            return f"--{self.key}", value
        return "--option", f"{self.key}={value}"

    def folder(self, value: str) -> str:
        """Returns the name of the study with a value."""
        text = re.sub(r"[^A-Za-z0-9._+-]+", "-", f"{self.key}-{value}")
        return text.strip("-._")[:100]


def parse_vary(text: str, what: str) -> Axis:
    """Returns what ``KEY=A,B,C`` varies."""
    key, equals, listed = text.partition("=")
    values = tuple(value.strip() for value in listed.split(","))
    if not equals or not key.strip() or "" in values:
        raise ParseError(
            f"{what}: {text!r} is not KEY=A,B,...; write for example"
            f" {GLOBAL}=256,512, or {DATA}=cartpole:swingup,walker:walk"
        )
    axis = Axis(key=key.strip().removeprefix("--"), values=values)
    folders = [axis.folder(value) for value in values]
    for value, folder in zip(values, folders, strict=True):
        if folders.count(folder) > 1:
            raise ParseError(
                f"{what}: {value!r} is given twice, or its study would have the name"
                f" of another one, {folder!r}; give each value once"
            )
    if not _FEWEST <= len(values) <= MOST_VALUES:
        raise ParseError(
            f"{what}: {text!r} has {len(values)} values; allowed are {_FEWEST} to"
            f" {MOST_VALUES}; of one, use --{axis.key} or --option itself"
        )
    return axis


VARY: Final = Kind(parse_vary, metavar="KEY=A,B,...")


def requests(request: RequestT, axis: Axis) -> dict[str, RequestT]:
    """Returns a request for each value, by the name of its study."""
    of = None
    if axis.key in OPTIONS:
        of = next(o for o in option.declared(type(request)) if o.name == axis.key)
    taken = getattr(request, of.field) if of else request.options.get(axis.key)
    if taken is not None:
        raise PlanError(
            f"--vary {axis.key}=... varies {axis.key}, which is {taken!r} by an option"
            " of its own; give one of the two"
        )
    found = {}
    for value in axis.values:
        changed: dict[str, Any]
        if of:
            changed = {of.field: of.kind.read(value, of.spelling)}
        else:
            own = parse_key_values([f"{axis.key}={value}"], what="--vary")
            changed = {"options": {**request.options, **own}}
        found[axis.folder(value)] = request.model_copy(update=changed)
    return found


def without(words: Sequence[str], *options: str) -> list[str]:
    """Returns the words of a command without some of its options."""
    kept: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word in options:
            next(remaining, None)
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept
