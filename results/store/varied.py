"""A varied study on disk: a study for each value of one setting, in one folder.

::

    runs/<name>/
      vary.json                  which setting, and the studies, in order
      <setting>-<value>/         a study, whole without the others
      report/index.html          all of them
      SHA256SUMS                 the digest of vary.json; each study has its own

What a study measured stands in its own records only: ``value_of`` reads the value
there, so that exchanging two names in ``vary.json`` exchanges nothing but their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from results import errors
from results.records.models import Plan, ScalingMode
from results.records.record_base import Line, Name, Record, Text
from results.store import record_file, untrusted
from results.store.study_store import PLAN_NAME, VARIED_NAME, Store

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

MOST_VALUES: Final = 100
DATA: Final = "data"
PER_REPLICA: Final = "per-replica-batch-size"
GLOBAL: Final = "global-batch-size"

Folder = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]


class Varied(Record):
    """Studies that differ in one setting."""

    schema_version: Literal[6] = 6
    key: Line  # ``data``, a batch size, or an option of the workload.
    # Their folders, in the order of the values.
    studies: Annotated[tuple[Folder, ...], Field(min_length=1, max_length=MOST_VALUES)]
    created_at: Name
    command: tuple[Text, ...] = Field(max_length=10_000)


def read(root: pathlib.Path) -> Varied | None:
    """Reads which studies a folder has; None if it is no varied study."""
    return record_file.read(root / VARIED_NAME, "vary", Varied)


def write(root: pathlib.Path, varied: Varied) -> None:
    """Writes which studies a folder has, and lists it in the folder's manifest."""
    Store(root).write_listed(VARIED_NAME, varied)


def stores(root: pathlib.Path, varied: Varied) -> list[Store]:
    """Opens the studies that have begun."""
    return [
        Store.open(root / name)
        for name in varied.studies
        if untrusted.is_there(root / name / PLAN_NAME)
    ]


def value_of(plan: Plan, key: str) -> str:
    """The value of the setting that a study was made with, as a user writes it."""
    found = _values(plan, key)
    if len(found) != 1:
        raise errors.ResultsError(
            f"study {plan.study!r} has {len(found)} values of {key!r}"
            f" ({', '.join(found[:3])}), and a study of a parameter sweep has one; "
            f"remove it from {VARIED_NAME}, or run the sweep again with another --study"
        )
    return found[0]


def _values(plan: Plan, key: str) -> Sequence[str]:
    if key == DATA:
        values = [trial.spec.data for trial in plan.trials]
    elif key in (PER_REPLICA, GLOBAL):
        mode = ScalingMode.WEAK if key == PER_REPLICA else ScalingMode.STRONG
        field = key.replace("-", "_")
        values = [
            str(getattr(trial.spec, field))
            for trial in plan.trials
            if mode in trial.modes
        ]
    else:
        values = [
            _text(trial.spec.options[key])
            for trial in plan.trials
            if key in trial.spec.options
        ]
    return list(dict.fromkeys(values))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
