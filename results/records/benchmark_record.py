"""Imported micro-benchmarks: how long one call of a function takes.

They are a record of their own, in a directory beside the studies: they have neither
replicas nor steps. A generation is a fresh process, as of a trial: the repeats within
one process depend on each other, since they share its memory layout and caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from results.records import identity, limits
from results.records.bounds import Cores, Index, Line, Name, PositiveTotal, Seconds
from results.records.record_base import Record
from results.store import record_file
from results.store.study_store import BENCHMARKS_NAME

if TYPE_CHECKING:
    import pathlib

KIND = "benchmarks"


class BenchmarkMachine(Record):
    """What must match before two figures are compared."""

    cpu_model: Name
    num_logical_cores: Cores | None = None
    system: Name
    kernel: Name
    architecture: Name
    python_version: Name

    @property
    def digest(self) -> str:
        """The machine class."""
        return identity.digest(self.model_dump(mode="json"))

    @property
    def words(self) -> str:
        """Processor and cores, for people."""
        cores = self.num_logical_cores
        return self.cpu_model if cores is None else f"{self.cpu_model}, {cores} cores"


class BenchmarkTimes(Record):
    """One benchmark in one process: statistics of the seconds of a call."""

    name: Line = Field(description="file and function, with parameters")
    generation: Index = Field(description="which process, from 0")
    num_rounds: PositiveTotal
    median_sec: Seconds
    mean_sec: Seconds
    min_sec: Seconds
    max_sec: Seconds


class Benchmarks(Record):
    """The micro-benchmarks of one revision on one machine."""

    schema_version: Literal[6] = 6
    study: Name
    measured_at: Name = Field(description="RFC 3339; of the first process")
    commit: Name = ""
    is_source_modified: bool = False
    machine: BenchmarkMachine
    times: tuple[BenchmarkTimes, ...] = Field(
        min_length=1, max_length=limits.MAX_TRIALS
    )

    @property
    def names(self) -> list[str]:
        """The benchmarks, in the order in which they were measured."""
        return list(dict.fromkeys(times.name for times in self.times))

    def medians(self, name: str) -> list[float]:
        """Returns the median seconds of a call in each generation, in their order."""
        found = [times for times in self.times if times.name == name]
        found.sort(key=lambda times: times.generation)
        return [times.median_sec for times in found]


def holds_benchmarks(root: pathlib.Path) -> bool:
    """Returns whether a directory has micro-benchmarks in place of trials."""
    return (root / BENCHMARKS_NAME).exists()


def read(root: pathlib.Path) -> Benchmarks:
    """Reads the micro-benchmarks of a directory.

    Raises:
      ResultsError: They cannot be read.
    """
    found = record_file.read(root / BENCHMARKS_NAME, KIND, Benchmarks)
    assert found is not None, "ask holds_benchmarks before"
    return found


def write(root: pathlib.Path, benchmarks: Benchmarks) -> None:
    """Writes micro-benchmarks into a directory.

    Raises:
      WriteStoreError: It cannot be written.
    """
    record_file.write(root / BENCHMARKS_NAME, benchmarks)
