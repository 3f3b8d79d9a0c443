"""Options that several subcommands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from harness.options import kinds
from harness.options.option import Option
from harness.planning import defaults
from harness.planning.request import STUDY

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNS_DIR: Final = Path(defaults.RUNS_DIR)


def complete_study(params: Mapping[str, Any], incomplete: str) -> list[str]:
    """Returns the studies below ``--runs-dir`` whose names begin like this."""
    try:
        plans = sorted(Path(params.get("runs_dir") or RUNS_DIR).glob("*/plan.json"))
    except OSError:  # nothing to complete; the subcommand itself says what is wrong
        return []
    names = [path.parent.name for path in plans]
    return [name for name in names if name.startswith(incomplete)]


RunsDir = Annotated[Path, Option("Directory of the studies.", STUDY)]
IsJson = Annotated[
    bool, Option("Print data as JSON on stdout.", STUDY, name="json", is_key=False)
]
StudyArgument = Annotated[
    str, Option(is_argument=True, complete=complete_study, is_key=False)
]
StudyArguments = Annotated[
    tuple[str, ...],
    Option(
        is_argument=True,
        is_key=False,
        kind=kinds.TEXTS,
        complete=complete_study,
        metavar="STUDY...",
    ),
]
