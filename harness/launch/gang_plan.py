"""What the processes of a gang must know of their trial, in a file of its directory.

The records say the same, but reading them imports a library that takes longer than all
else that these processes do until the worker starts.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from results.store import atomic

if TYPE_CHECKING:
    from pathlib import Path

    from harness.placement.processes import Member

_NAME = "gang.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GangPlan:
    """The members of a gang and their places."""

    members: tuple[Member, ...]  # Kind and index of each.
    cpusets: tuple[tuple[int, ...], ...]  # The cores of each, on its host.
    num_ranks: int  # How many of them are measured: the first ones.
    members_per_host: int  # The first so many are on the first host, and so on.
    # Environment variables that say to members what they are, where their engine only
    # numbers them.
    variables: dict[str, str]

    def write(self, trial_dir: Path) -> None:
        """Writes the file."""
        atomic.write_text(trial_dir / _NAME, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, trial_dir: Path) -> GangPlan:
        """Reads the file."""
        fields = json.loads((trial_dir / _NAME).read_bytes())
        return cls(
            members=tuple((kind, index) for kind, index in fields["members"]),
            cpusets=tuple(map(tuple, fields["cpusets"])),
            num_ranks=fields["num_ranks"],
            members_per_host=fields["members_per_host"],
            variables=fields["variables"],
        )
