"""The n-th call that writes to a study fails: the same figures, or one line and a code.

For sweeps in sequence and in a relay, each kind of call and each errno. Nothing that
was finished is lost or measured again, no half file is left, and the same command
finishes the study. ``WRITE_FAULTS`` sets how many are drawn; ``make faults`` draws
1,000.
"""

from __future__ import annotations

import builtins
import dataclasses
import errno
import io
import os
import pathlib
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli import exit_codes, running
from harness.cli import main as cli
from harness.machine.disturbance import Disturbance
from harness.run import turn_file
from results.errors import WriteStoreError
from results.records.models import TrialStatus
from results.store.atomic import TEMPORARY_PREFIX
from results.store.study_store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Self

pytestmark = pytest.mark.processes

SWEEP = (
    "sweep", "--workload=resnet50", "--preset=smoke", "--replicas=1", "--mode=weak",
    "--repeats=2", "--no-match", "--budget=none", "--study=s",
)  # fmt: skip
ORDERS = {
    "sequential": ("--order=sequential", "--backends=in_graph"),
    "relay": ("--order=relay", "--rounds=2", "--backends=single,in_graph"),
}
ERRNOS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
NUM_FAULTS = int(os.environ.get("WRITE_FAULTS", "8"))
SEED = 20_261_125
NOT_OURS = (".lock", "stdout.log", "stderr.log")
"""The lock of the operating system; what trials write themselves."""


class FaultyFile:
    """A file of which a write may fail, after half of it is written."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def write(self, content: Any) -> int:
        """Writes it, or half of it."""
        if self._faults.is_due():
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            self._faults.fail("write")
        return int(self._file.write(content))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@dataclasses.dataclass
class Faults:
    """Lets the n-th call of this process that writes below a folder fail.

    Attributes:
      root: The folder.
      place: Which call fails, from 0 on; none if negative.
      number: The errno.
      count: How many calls there were.
      failed: What has failed.
    """

    root: Path
    place: int = -1
    number: int = errno.EIO
    count: int = 0
    failed: str = ""

    def is_due(self) -> bool:
        """Counts a call; returns whether it has to fail."""
        self.count += 1
        return self.count - 1 == self.place

    def fail(self, what: str, path: Any = None) -> None:
        """Fails as the system does."""
        self.failed = f"{what} {path or ''} {os.strerror(self.number)}"
        raise OSError(self.number, os.strerror(self.number), path and str(path))

    def call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a call that may fail."""

        def wrapped(path: Any, *args: Any, **options: Any) -> Any:
            is_making = name != "open" or bool(args and args[0] & os.O_CREAT)
            if is_making and self._is_ours(path) and self.is_due():
                self.fail(name, path)
            return real(path, *args, **options)

        return wrapped

    def opener(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what opens files whose writes may fail."""

        def wrapped(path: Any, *args: Any, **options: Any) -> Any:
            mode = options.get("mode", args[0] if args else "r")
            if not set(mode) & set("wxa+") or not self._is_ours(path):
                return real(path, *args, **options)
            return FaultyFile(real(path, *args, **options), self)

        return wrapped

    def _is_ours(self, path: Any) -> bool:
        if isinstance(path, int):
            link = pathlib.Path(f"/proc/self/fd/{path}")
            path = link.readlink() if link.is_symlink() else ""
        text = os.path.abspath(os.fspath(path))  # noqa: PTH100
        return str(self.root) in text and not text.endswith(NOT_OURS)


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Returns what lets calls fail that write to the study."""
    found = Faults(tmp_path / "runs")
    for name in ("open", "fsync", "replace", "rename", "link", "mkdir"):
        monkeypatch.setattr(os, name, found.call(name, getattr(os, name)))
    opener = found.opener(io.open)
    monkeypatch.setattr(io, "open", opener)
    monkeypatch.setattr(builtins, "open", opener)
    return found


def finished_in(root: Path) -> dict[str, bytes]:
    """The status of each trial that a later run must not touch, by its id.

    A generation of a relay is finished when all of its trials are.
    """
    if not (root / "plan.json").is_file():
        return {}
    store = Store(root)
    planned = store.read_plan().trials
    ended = {
        trial.trial_id: store.trial_dir(trial.trial_id) / "status.json"
        for trial in planned
        if (store.trial_dir(trial.trial_id) / "status.json").is_file()
    }
    left = {
        trial.spec.repetition_index for trial in planned if trial.trial_id not in ended
    }
    if planned[0].spec.order.value == "sequential":
        left = set()
    return {
        trial.trial_id: ended[trial.trial_id].read_bytes()
        for trial in planned
        if trial.trial_id in ended and trial.spec.repetition_index not in left
    }


@pytest.mark.parametrize("order", ORDERS)
def test_a_failed_write_loses_nothing(
    order: str,
    tmp_path: Path,
    faults: Faults,
    overrides: Any,
    forked_trials: None,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line with what failed, or all figures; then the same command finishes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "_conclude", lambda _store, *, is_json: None)
    root = tmp_path / "runs" / "s"
    arguments = (*SWEEP, *ORDERS[order])

    def run(place: int = -1) -> tuple[int, str]:
        faults.place, faults.count, faults.failed = place, 0, ""
        code = cli.main(arguments, run_overrides=overrides)
        faults.place = -1
        return code, capsys.readouterr().err

    assert exit_codes.OK == run()[0]
    num_calls, num_trials = faults.count, len(Store(root).read_plan().trials)
    assert num_calls > 20, "it wrote nothing"
    random_places = random.Random(f"{SEED}{order}")
    wrong = []
    for number in range(NUM_FAULTS // len(ORDERS)):
        shutil.rmtree(root, ignore_errors=True)
        faults.number = ERRNOS[number % len(ERRNOS)]
        code, err = run(random_places.randrange(num_calls))
        what, before = faults.failed, finished_in(root)
        again, said = run()
        after = finished_in(root)
        statuses = [of.status and of.status.status for of in Store(root).trials()]
        problems = {
            "the code is of no refusal": code not in {exit_codes.OK, exit_codes.USAGE},
            "no line says it": code == exit_codes.USAGE
            and not (err.splitlines() or [""])[-1].startswith("error: "),
            "a traceback": "Traceback" in err,
            "the same command does not finish": again != exit_codes.OK,
            "a trial is missing": statuses != [TrialStatus.OK] * num_trials,
            "a finished trial changed": not before.items() <= after.items(),
            "half a file is left": any(root.rglob(f"{TEMPORARY_PREFIX}*")),
        }
        found = [text for text, is_wrong in problems.items() if is_wrong]
        if found:
            wrong.append((what, code, found, err[-300:], said[-300:]))

    assert [] == wrong


def test_what_a_killed_writer_left_is_removed(
    tmp_path: Path, harness: Any, overrides: Any, forked_trials: None
) -> None:
    """Also within folders of trials, as soon as the study is locked."""
    arguments = (*SWEEP, *ORDERS["sequential"])
    assert exit_codes.OK == harness(*arguments, overrides=overrides)[0]
    root = tmp_path / "runs" / "s"
    folders = [root, next((root / "trials").iterdir())]
    for folder in folders:
        (folder / f"{TEMPORARY_PREFIX}x-env.json").write_text("{")
    before = finished_in(root)

    assert exit_codes.OK == harness(*arguments, overrides=overrides)[0]
    assert [] == list(root.rglob(f"{TEMPORARY_PREFIX}*"))
    assert before == finished_in(root)


def test_a_turn_that_cannot_be_written_names_its_file(tmp_path: Path) -> None:
    """The error of a write has no path, and would be taken for one of stdout."""
    (tmp_path / turn_file.TURNS_NAME).symlink_to("/dev/full")
    load = Disturbance(
        foreign_cpu_fraction=0.0,
        stolen_cpu_fraction=0.0,
        num_throttled=0,
        foreign_resolution=0.0,
        stolen_resolution=0.0,
        run_delay_sec=0.0,
        throttled_sec=0.0,
    )

    with pytest.raises(
        WriteStoreError, match=r"cannot write '.*/turns.jsonl': No space left .*; free"
    ):
        turn_file.append(tmp_path, 0, 0, load)
