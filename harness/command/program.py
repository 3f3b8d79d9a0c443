"""A program of the user's as the planner needs it: a workload of its own kind.

The door for programs that take turns is here as well: what their processes are follows
from ``processes_of``, and what starts them is ``harness/command/worker.py``, which
passes the address of the harness on.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.catalog import (
    BACKENDS,
    ONE_PROCESS,
    PEERS,
    WORKLOADS,
    BackendInfo,
    PresetInfo,
    WorkloadInfo,
)
from harness.command import identity, numbers, placeholders, reader, repository
from harness.errors import PlanError
from results.records.limits import MAX_NAME
from results.records.models import Program
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PRESET: Final = "command"
DATA: Final = "its own"
UNIT: Final = "samples"
NUM_WARMUP: Final = 3
"""Numbers of a program that are left out, unless another number is requested."""
NUM_MEASURED: Final = 30
"""Steps of a program that takes turns, and runs alone."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ForeignProgram:
    """A program of the user's."""

    name: str  # What reports call it.
    record: Program  # What its trials have in common.
    # The parts of its identity, by revision; empty for the present one.
    code: Mapping[str, Mapping[str, str]]

    def code_digest(self, revision: str) -> str:
        """Returns the digest of the code of a revision."""
        return identity.digest(self.code[revision])

    def workload(self, per_replica_batch_size: int) -> WorkloadInfo:
        """Returns it as a workload with one preset."""
        return WorkloadInfo(
            name=self.name,
            version="1",
            example_unit=self.record.unit,
            description="a program of the user's",
            module="",
            config_module="",
            metrics_module="",
            presets=(
                PresetInfo(
                    name=PRESET,
                    description="as its command says",
                    data=DATA,
                    per_replica_batch_size=per_replica_batch_size,
                    num_warmup_steps=NUM_WARMUP,
                    num_measured_steps=NUM_MEASURED if self.record.is_client else 1,
                ),
            ),
            default_preset=PRESET,
            builtin_data=(DATA,),
            syncs_because="the program says when a step ends",
        )

    @property
    def backend(self) -> BackendInfo:
        """Returns it as a backend of one process, which starts the others."""
        return backend_of(self.name)


def backend_of(name: str) -> BackendInfo:
    """Returns a program as a backend of one process."""
    return BackendInfo(
        name=name,
        target="",
        description="a program of the user's",
        kind="peer",
        processes=ONE_PROCESS,
    )


def make(
    *,
    command: str,
    metric_text: str,
    unit: str,
    setup: str,
    replicas: Iterable[int],
    folder: Path,
    left_out: Sequence[Path] = (),
    count_texts: Sequence[str] = (),
) -> ForeignProgram:
    """Returns the program that a command starts, identified as it is now."""
    placeholders.check(command, replicas)
    of = numbers.parse_metric(metric_text)
    placeholders.names_in(of.path)
    reader.parse_count(count_texts)
    source = repository.find(folder, left_out)
    return ForeignProgram(
        name=name_of(command, folder),
        record=Program(
            command=command,
            metric=metric_text,
            unit=unit,
            counts=tuple(count_texts),
            folder=_place(folder, source),
            setup=setup,
        ),
        code={"": identity.of_program(command, folder, source, left_out)},
    )


def name_of(command: str, folder: Path) -> str:
    """Returns what a program is called: its script, its module, or its first word."""
    words = placeholders.split(command)
    name = Path(words[0]).name
    files = [word for word in words[1:] if (folder / word).is_file()]
    if files:
        name = Path(files[0]).name
    elif "-m" in words[:-1]:
        name = words[words.index("-m") + 1]
    name = printable(name)[: MAX_NAME // 2]
    return f"{name}-command" if name in {*WORKLOADS, *BACKENDS, *PEERS} else name


def _place(folder: Path, source: repository.Repository | None) -> str:
    """Returns where a folder is in its repository; empty for the top of it."""
    if source is None or folder.resolve() == source.root:
        return ""
    return str(folder.resolve().relative_to(source.root))


def check_folder(record: Program, folder: Path) -> None:
    """Checks that a program is continued from where it was started."""
    here = _place(folder, repository.find(folder, [folder]))
    if here != record.folder:
        raise PlanError(
            f"the command {record.command!r} was started in"
            f" {record.folder or 'the folder of its repository'!r}, and this is"
            f" {here or 'the folder of the repository'!r}; go there, and repeat"
        )
