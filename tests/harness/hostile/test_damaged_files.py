"""Any file that is read is damaged in any way: one line, or an answer; never a fault.

Of each file that a verb or the harness reads beside the records of a study, which have
``tests/harness/run/test_hostile_records.py``. ``DAMAGED_FILES`` sets how many;
``make fuzz-records`` damages 2,000. ``FAULTS_SEED`` draws others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import traceback
from typing import TYPE_CHECKING, Any

import drawn
import pytest
from damaged import damage
from hung import Hung, at_most
from loads import QUIET

from harness.cli import exit_codes, running
from harness.cli import main as cli
from harness.command import files
from harness.command.errors import ReadingError
from harness.machine import cuda_cache, disturbance
from harness.run.aggregate import conclude
from harness.run.trial_tree import TrialExit
from reports.view import reference_points
from results.records.models import StatusRecord
from results.store.study_store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.processes

NUM_FILES = int(os.environ.get("DAMAGED_FILES", "80"))
LONGEST_SEC = 30
CODES = {
    value
    for name, value in vars(exit_codes).items()
    if name.isupper() and name not in ("INTERNAL_FAULT", "INTERRUPTED")
}
NOTES = ("error: ", "left out: ", "report: ", "note: ", "study ")
SMALL = (
    "sweep", "--workload=resnet50", "--preset=smoke", "--backends=in_graph",
    "--replicas=1,2", "--mode=weak", "--budget=none",
)  # fmt: skip
TOML = """
workload = "resnet50"
preset = "smoke"
replicas = "1,2"
mode = ["weak"]
repeats = 2
budget = "none"
minutes = "5min"
[option]
image_size = 32
"""
SIGNERS = "jane@example.org ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJlE\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any, overrides: Any) -> Path:
    """Makes a folder with every kind of file, measured by the fake worker."""
    import forked_trials

    root: Path = tmp_path_factory.mktemp("whole") / "place"
    root.mkdir()
    with (
        forked_trials.installed(overrides["worker_command"]),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(root)
        patch.setattr(running, "_conclude", lambda _store, *, is_json: None)
        patch.setattr(disturbance, "between", lambda *_: QUIET)
        for more in (
            ("--study=r", "--repeats=2", "--order=relay", "--rounds=3"),
            ("--study=v", "--repeats=1", "--order=sequential", "--no-match",
             "--vary=data=digits,synthetic"),
        ):  # fmt: skip
            code = cli.main((*SMALL, *more), run_overrides=overrides)
            assert exit_codes.OK == code
        assert exit_codes.OK == cli.main(("baseline", "set", "r"))
    study = root / "runs" / "r"
    (study / "report").mkdir(exist_ok=True)
    (study / "report" / "index.html").write_text("<p>a page of 12 numbers</p>\n")
    (study / "seal.jsonl.sig").write_text("-----BEGIN SSH SIGNATURE-----\nAAAA\n")
    (study / ".lock-holder").write_text("1\n")
    (study / ".lock-heartbeat").write_text("another 0123\n")
    (root / "study.toml").write_text(TOML)
    (root / "signers").write_text(SIGNERS)
    published = reference_points._FOLDER / f"{reference_points.names()[0]}.yaml"
    (root / "references.yaml").write_bytes(published.read_bytes())
    (root / "numbers.json").write_text('{"a": {"b": [1.5, 2]}}\n{"a": {"b": 3}}\n')
    (root / "numbers.csv").write_text("step,rate\n1,20.5\n2,21\n")
    note = root / "cuda"
    cuda_cache.note(note, "9.0, driver 550, TensorFlow 2.21")
    trial = next(root.glob("runs/v/data-digits/trials/*"))
    shutil.copytree(trial, root / "trial")
    (root / "trial" / "first_exit.json").write_text('{"rank": 0, "reason": "lost"}')
    return root


def of_numbers(kind: str, key: str) -> Callable[[Path], None]:
    """Reads the numbers of a program, as ``--metric`` does."""

    def read(path: Path) -> None:
        with contextlib.suppress(ReadingError):
            files.read(kind, path, key)

    return read


def of_references(path: Path) -> None:
    """Reads published figures, as ``report --references`` does."""
    with contextlib.suppress(reference_points.ReferencesError):
        reference_points.read(str(path))


def of_note(path: Path) -> None:
    """Reads what was compiled for which GPUs, as ``doctor`` does."""
    cuda_cache.noted(path.parent)


def of_trial(path: Path) -> None:
    """Concludes what a trial has written, and stores it."""
    place = path.parents[1]
    store, trial_id = Store(place / "runs" / "new"), "0" * 20
    store.trial_dir(trial_id).mkdir(parents=True)
    spec = next(Store(place / "runs" / "v" / "data-digits").trials()).spec
    for exit_code in (0, 1, -9):
        ended = TrialExit(
            exit_code=exit_code, is_timed_out=False, timeout_sec=9, duration_sec=1,
            num_oom_kills=0,
        )  # fmt: skip
        found = conclude(trial_id, spec, path.parent, ended)
        status = StatusRecord(
            trial_id=trial_id,
            status=found.status,
            started_at="2026-01-01T00:00:00+00:00",
            ended_at="2026-01-01T00:00:00+00:00",
            duration_sec=1.0,
            failure=found.failure,
        )
        store.write_status(trial_id, status)


READERS: dict[str, tuple[str, tuple[str | Callable[[Path], None], ...]]] = {
    "observations": (
        "runs/r/trials/*/rank_0.jsonl",
        ("verify r", "publish r -o written", "status r"),
    ),
    "load within turns": ("runs/r/trials/*/turns.jsonl", ("verify r", "status r")),
    "observations of a match": (
        "runs/r/match/trials/*/rank_0.jsonl",
        ("verify r", "status r"),
    ),
    "seal": ("runs/r/seal.jsonl", ("verify r", "publish r -o written")),
    "signature": ("runs/r/seal.jsonl.sig", ("verify r",)),
    "signers": ("signers", ("verify r --signers signers",)),
    "page": ("runs/r/report/index.html", ("verify r", "report r -o page.html")),
    "holder": ("runs/r/.lock-holder", ("status r", "status r --json")),
    "owner": ("runs/r/.lock-heartbeat", ("resume r",)),
    "varied study": ("runs/v/vary.json", ("status v", "verify v", "list studies")),
    "baselines": (
        "runs/baselines.json",
        ("baseline show", "baseline set r --name=x", "baseline show --json"),
    ),
    "study file": ("study.toml", ("plan --file study.toml",)),
    "references": ("references.yaml", (of_references,)),
    "numbers in JSON": ("numbers.json", (of_numbers("json", "a.b"),)),
    "numbers in CSV": ("numbers.csv", (of_numbers("csv", "rate"),)),
    "note of compiled code": ("cuda/*", (of_note,)),
    "what a trial wrote": ("trial/rank_0.jsonl", (of_trial,)),
    "what ended first": ("trial/first_exit.json", (of_trial,)),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_no_fault(
    name: str,
    whole: Path,
    tmp_path: Path,
    overrides: Any,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No traceback, no internal error, an end in time."""
    pattern, readers = READERS[name]
    monkeypatch.setattr("reports.page.build.build_report", lambda *_, **__: "<p>12</p>")
    wrong = []
    for number in range(-(-NUM_FILES // len(READERS))):
        chance = drawn.chance(f"{name} {number}")
        place = tmp_path / "place"
        shutil.copytree(whole, place)
        monkeypatch.chdir(place)
        if name == "load within turns":  # they are read while they are written
            (place / "runs/r/.lock-holder").write_text(f"{os.getpid()}\n")
            for status in place.glob("runs/r/trials/*/status.json"):
                status.unlink()
        path = chance.choice(sorted(place.glob(pattern)))
        how = damage(path, chance)
        for reader in readers:
            started = time.monotonic()
            fault = fault_of(reader, path, overrides, capsys)
            if time.monotonic() - started > LONGEST_SEC / 2:
                fault = fault or "it took long"
            if fault:
                wrong.append((number, how, str(reader), fault))
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(place)

    assert [] == wrong


def fault_of(
    reader: str | Callable[[Path], None], path: Path, overrides: Any, capsys: Any
) -> str:
    """Runs a reader; returns what is wrong with how it ended, or ""."""
    try:
        with at_most(LONGEST_SEC):
            if not isinstance(reader, str):
                reader(path)
                return ""
            code = cli.main(reader.split(), run_overrides=overrides)
    except Hung:
        return "it hangs"
    except Exception:  # noqa: BLE001 - whatever it is, is a fault
        return traceback.format_exc()[-1500:]
    out, err = capsys.readouterr()
    strange = [line for line in err.splitlines() if not line.startswith(NOTES)]
    faults = {
        f"code {code}: {err[-1500:]}": code not in CODES or "Traceback" in err,
        f"a refusal without a line: {out[-300:]}": not err,
        f"a refusal in lines: {strange[:3]}": strange,
    }
    is_refused = code == exit_codes.USAGE
    found = [text for text, is_one in faults.items() if is_one]
    return found[0] if found and (is_refused or code not in CODES) else ""
