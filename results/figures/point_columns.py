"""The columns of the tidy frame of points, their types, and how a row begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.records.models import ScalingMode
    from results.study.cases import Case

    Row = dict[str, Any]

POINT_COLUMNS: Final = (
    "figure",
    "quantity",
    "kind",
    "mode",
    "backend",
    "other_backend",
    "revision",
    "num_replicas",
    "per_replica_batch_size",
    "global_batch_size",
    "value",
    "low",
    "high",
    "n",
    "unit",
    "method",
    "protocol",
    "is_baseline",
    "is_oversubscribed",
    "trial_id",
    "repetition_index",
    "num_steps",
    "num_examples",
    "num_environment_steps",
    "train_time_sec",
    "rank",
    "phase",
    "step_index",
)
_FLAGS: Final = ("is_baseline", "is_oversubscribed")
_COUNTS: Final = (
    "num_replicas",
    "per_replica_batch_size",
    "global_batch_size",
    "n",
    "repetition_index",
    "num_steps",
    "num_examples",
    "num_environment_steps",
    "rank",
    "step_index",
)
_NUMBERS: Final = ("value", "low", "high", "train_time_sec")


def types() -> dict[str, str]:
    """Returns the type of every column, as pandas names it."""
    found = dict.fromkeys(_FLAGS, "bool") | dict.fromkeys(_COUNTS, "Int64")
    found |= dict.fromkeys(_NUMBERS, "float64")
    others = [name for name in POINT_COLUMNS if name not in found]
    return found | dict.fromkeys(others, "object")


def new_row(figure: str, quantity: str, kind: str, case: Case, **more: Any) -> Row:
    """Returns a row of a case, with what every row of it has, and ``more``."""
    spec = case.spec
    row: Row = dict.fromkeys(POINT_COLUMNS)
    row |= {
        "figure": figure,
        "quantity": quantity,
        "kind": kind,
        "mode": modes_text(case.modes),
        "backend": spec.backend,
        "revision": spec.revision,
        "num_replicas": spec.num_replicas,
        "per_replica_batch_size": spec.per_replica_batch_size,
        "global_batch_size": spec.global_batch_size,
        "unit": "",
        "is_baseline": False,
        "is_oversubscribed": case.is_oversubscribed,
    }
    return row | more


def modes_text(modes: Sequence[ScalingMode]) -> str:
    """Returns the scaling modes that a case serves, in words."""
    return " and ".join(mode.value for mode in modes)
