"""The option ``--vary``: a sweep for each value of one setting."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from harness.errors import ParseError, PlanError
from harness.options import kinds, option
from harness.options.notation import parse_key_values
from harness.planning.request import SweepRequest
from results.store.varied import DATA, GLOBAL, MOST_VALUES, PER_REPLICA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.options.kinds import Kind

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


def parse_vary(text: str, *, what: str) -> Axis:
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


VARY: Final[Kind] = kinds.parsed(parse_vary, metavar="KEY=A,B,...")


def requests(request: RequestT, axis: Axis) -> dict[str, RequestT]:
    """Returns a request for each value, by the name of its study."""
    declared = {of.name: of for of in option.declared(type(request))}
    found = {}
    for value in axis.values:
        if axis.key in OPTIONS:
            of = declared[axis.key]
            _check_free(axis, getattr(request, of.field))
            changed: dict[str, Any] = {of.field: of.kind.read(value, of.spelling)}
        else:
            _check_free(axis, request.options.get(axis.key))
            text = f"{axis.key}={value}"
            own = parse_key_values([text], what="--vary")
            changed = {"options": {**request.options, **own}}
        found[axis.folder(value)] = request.model_copy(update=changed)
    return found


def _check_free(axis: Axis, value: object) -> None:
    if value is not None:
        raise PlanError(
            f"--vary {axis.key}=... varies {axis.key}, which is {value!r} by an option"
            " of its own; give one of the two"
        )


def command(
    words: Sequence[str], axis: Axis, value: str, *, runs_dir: str, study: str
) -> tuple[str, ...]:
    """Returns the command that makes the study of one value on its own."""
    left_out = ("--vary", "--study", "--runs-dir")
    kept: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word in left_out:
            next(remaining, None)
        elif word.partition("=")[0] not in left_out:
            kept.append(word)
    return (*kept, *axis.words(value), "--runs-dir", runs_dir, "--study", study)
