"""The folder in which the processes of a cluster leave what came of each case."""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_POLL_SEC = 0.02
_PICKLED = "__pickled__"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What came of a case in one process."""

    value: Any = None  # What it returned; tuples have become lists.
    error: str = ""  # Type and message of what it raised; empty if it returned.
    trace: str = ""  # Where that was raised.
    duration_sec: float = 0.0  # Time that the case took.

    def to_json(self):
        """As text; what JSON does not know, such as arrays, is pickled in it."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps(fields, default=_pickled)

    @classmethod
    def from_json(cls, text):
        return cls(**json.loads(text, object_hook=_unpickled))


def _pickled(value):
    return {_PICKLED: base64.b64encode(pickle.dumps(value)).decode("ascii")}


def _unpickled(found):
    if set(found) != {_PICKLED}:
        return found
    return pickle.loads(base64.b64decode(found[_PICKLED]))


@dataclasses.dataclass(frozen=True)
class ResultFolder:
    """One file per case and process; a file is there when it is complete."""

    path: Path  # The folder.
    num_processes: int  # Processes that run the cases.

    def write(self, case_name, process, result):
        part = self._file(case_name, process).with_suffix(".part")
        part.write_text(result.to_json(), encoding="utf-8")
        part.rename(part.with_suffix(".json"))

    def has(self, case_name, process):
        return self._file(case_name, process).exists()

    def has_all(self, case_name):
        return all(self.has(case_name, p) for p in range(self.num_processes))

    def read(self, case_name, process):
        text = self._file(case_name, process).read_text(encoding="utf-8")
        return CaseResult.from_json(text)

    def read_all(self, case_name):
        return [self.read(case_name, p) for p in range(self.num_processes)]

    def wait_for_all(self, case_name, timeout_sec):
        deadline = time.monotonic() + timeout_sec
        while not self.has_all(case_name):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"not every process came out of {case_name} in {timeout_sec:g} s"
                )
            time.sleep(_POLL_SEC)
        return self.read_all(case_name)

    def _file(self, case_name, process):
        # No suffix is taken off a name with a dot in it.
        return self.path / f"{case_name}.{process}.json"
