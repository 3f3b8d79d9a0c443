"""The folder in which the processes of a cluster leave what came of each case."""

from __future__ import annotations

import dataclasses
import pickle
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from conformance_cases.runner import Outcome

_POLL_SEC = 0.02


@dataclasses.dataclass(frozen=True)
class OutcomeFolder:
    """One file per case and process; a file is there when it is complete.

    Attributes:
      path: The folder.
      num_processes: Processes that run the cases.
    """

    path: Path
    num_processes: int

    def write(self, case_name: str, process: int, outcome: Outcome) -> None:
        """Leaves what came of a case in a process, by its number."""
        part = self._file(case_name, process).with_suffix(".part")
        part.write_bytes(pickle.dumps(outcome))
        part.rename(part.with_suffix(".pickle"))

    def has_all(self, case_name: str) -> bool:
        """Whether every process has left an outcome."""
        return all(
            self._file(case_name, process).exists()
            for process in range(self.num_processes)
        )

    def read(self, case_name: str) -> list[Outcome]:
        """What every process has left, in their order."""
        return [
            pickle.loads(self._file(case_name, process).read_bytes())
            for process in range(self.num_processes)
        ]

    def wait_for(self, case_name: str, timeout_sec: float) -> list[Outcome]:
        """Waits until every process has left an outcome.

        Raises:
          TimeoutError: Some did not in time.
        """
        deadline = time.monotonic() + timeout_sec
        while not self.has_all(case_name):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"not every process came out of {case_name} in {timeout_sec:g} s"
                )
            time.sleep(_POLL_SEC)
        return self.read(case_name)

    def _file(self, case_name: str, process: int) -> Path:
        return self.path / f"{case_name}.{process}.pickle"
