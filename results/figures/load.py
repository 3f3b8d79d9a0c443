"""What others used of the machine while a study ran, as far as it was recorded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.study.cases import Study

QUIET_FRACTION = 0.05
"""Of the CPU time: what others may use beside a trial."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Shares of the CPU time that others used."""

    unit: str  # What has one: a turn of a relay, or a trial.
    num_all: int  # All of these.
    num_unknown: int  # Those of which it was not recorded.
    # Trials beside which others used more than ``QUIET_FRACTION``; busy turns are void,
    # and counted elsewhere.
    num_busy: int
    most: float | None  # The largest share; None where none was recorded.


def of_study(study: Study) -> Load:
    """Returns what was recorded of all planned trials, of both sides of a gate."""
    trials = [entry.trial for entry in study.planned if entry.trial is not None]
    results = [trial.result for trial in trials if trial.result is not None]
    shares = [turn.foreign_cpu_fraction for of in results for turn in of.turns]
    is_relay = bool(shares)
    if not is_relay:
        environments = [trial.env for trial in trials if trial.env is not None]
        shares = [env.foreign_cpu_fraction for env in environments]
    known = [share for share in shares if share is not None]
    busy = [share for share in known if share > QUIET_FRACTION]
    return Load(
        unit="turn" if is_relay else "trial",
        num_all=len(shares),
        num_unknown=len(shares) - len(known),
        num_busy=0 if is_relay else len(busy),
        most=max(known, default=None),
    )
