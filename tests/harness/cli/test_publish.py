"""``publish`` copies what everybody may have, after a search of it, or nothing."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import published_studies
import pytest

from harness.cli import exit_codes
from reports.exports import publish
from results.store.study_store import Store

STUDY = published_studies.study("sngan")
TOKEN = "hf_" + "aB" * 17
QUICK = "<html><body><p>a page</p></body></html>"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a study of a few trials with pictures, one of which failed, with logs."""
    monkeypatch.setattr("reports.page.build.build_report", lambda *_: QUICK)
    root = tmp_path / "runs" / "s"
    (root / "trials").mkdir(parents=True)
    shutil.copy(STUDY / "plan.json", root)
    pictures = [path.parent for path in sorted(STUDY.glob("trials/*/samples_*.png"))]
    for folder in {*pictures[:1], *sorted(STUDY.glob("trials/*"))[:2]}:
        shutil.copytree(folder, root / "trials" / folder.name)
    trial = next(path.parent for path in root.glob("trials/*/samples_*.png"))
    (trial / "stdout.log").write_text(f"logged in with {TOKEN}")
    (trial / "logs").mkdir()
    (trial / "logs" / "worker_0.log").write_text(TOKEN)
    (trial / "checkpoint").mkdir()
    (trial / "checkpoint" / "rank_0.jsonl").write_text(TOKEN)
    return root


def fail(study: Path, reason: str, traceback: str) -> Path:
    """Lets a trial fail; returns its folder."""
    folder = next(path.parent for path in study.glob("trials/*/samples_*.png"))
    failure = {"phase": "measure", "reason": reason, "traceback": traceback}
    path = folder / "status.json"
    record = json.loads(path.read_text()) | {"status": "failed", "failure": failure}
    path.write_text(json.dumps(record))
    (folder / "result.json").unlink()
    with (folder / "rank_0.jsonl").open("a") as file:
        line = {"kind": "failure", **failure, "exception_type": "ValueError"}
        file.write(json.dumps(line) + "\n")
    return folder


def below(folder: Path) -> set[str]:
    """Returns the names of all files below a folder."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_only_listed_files_are_published(study: Path, harness: Any) -> None:
    """Records, observations and pictures byte for byte; no log, no checkpoint."""
    code, out, err = harness("publish", "s", "-o", "public")
    copied = below(Path("public"))

    assert exit_codes.OK == code, err
    assert "4 more stay in the study" not in out
    assert f"public: {len(copied)} files; 3 more stay in the study\n" == out
    assert {"plan.json", "report/index.html"} < copied
    assert any(name.endswith(".png") for name in copied)
    assert not [n for n in copied if "log" in n.rsplit("/", 1)[-1] or "checkpoint" in n]
    for name in copied - {"report/index.html", "SHA256SUMS"}:
        assert (study / name).read_bytes() == Path("public", name).read_bytes()
    assert QUICK == Path("public/report/index.html").read_text()
    assert [] == list(Path().glob(".tmp-*"))


def test_tracebacks_stay_in_the_study(study: Path, harness: Any) -> None:
    """What failed, where and why is published; through whose files it went is not."""
    folder = fail(study, "the loss is not finite", "File '/mnt/jane/secret.py', line 1")
    before = (folder / "status.json").read_bytes()
    code, _, err = harness("publish", "s", "-o", "public")
    status = Path("public", "trials", folder.name, "status.json").read_text()
    ranks = Path("public", "trials", folder.name, "rank_0.jsonl").read_text()

    assert exit_codes.OK == code, err
    assert "the loss is not finite" in status
    assert "the loss is not finite" in ranks
    assert "jane" not in status + ranks
    assert "withheld" == json.loads(status)["failure"]["traceback"]
    assert before == (folder / "status.json").read_bytes()
    assert [] == list(Store.open(Path("public")).read().problems)


def test_pictures_and_films_of_published_studies_are_plain() -> None:
    """Those of SN-GAN, and the animated ones of D4PG."""
    studies = [published_studies.study(name) for name in published_studies.NAMES]
    paths = [path for of in studies for path in of.glob("trials/*/*.png")]

    assert {"sngan", "d4pg"} == {path.parts[-4] for path in paths}
    assert all(publish._is_plain_picture(path.read_bytes()) for path in paths)


def put_reason(study: Path) -> str:
    """A library's message with a token, in the record of a failure."""
    return fail(study, f"401 for {TOKEN}", "").name


def put_rank(study: Path) -> str:
    """A line that nothing reads."""
    path = next(study.glob("trials/*/rank_0.jsonl"))
    path.write_text(path.read_text() + json.dumps({"kind": "x", "y": TOKEN}) + "\n")
    return f"{path.parent.name}/rank_0.jsonl"


def put_plan(study: Path) -> str:
    """A path in the command."""
    plan = json.loads((study / "plan.json").read_text())
    plan["command"] = ["python", "--data-dir", "/mnt/team-x/data"]
    (study / "plan.json").write_text(json.dumps(plan))
    return "plan.json"


def put_text_chunk(study: Path) -> str:
    """A text in a picture, compressed."""
    path = next(study.glob("trials/*/samples_*.png"))
    content = b"Comment\0\0" + zlib.compress(TOKEN.encode())
    chunk = b"zTXt" + content
    packed = struct.pack(">I", len(content)) + chunk
    packed += struct.pack(">I", zlib.crc32(chunk))
    data = path.read_bytes()
    path.write_bytes(data[:33] + packed + data[33:])
    return path.name


def put_behind(study: Path) -> str:
    """Something behind the end of a picture."""
    path = next(study.glob("trials/*/samples_*.png"))
    path.write_bytes(path.read_bytes() + TOKEN.encode())
    return path.name


@pytest.mark.parametrize(
    "put", [put_reason, put_rank, put_plan, put_text_chunk, put_behind]
)
def test_nothing_is_published_of_a_study_with_something_private(
    study: Path, harness: Any, put: Any
) -> None:
    """Exit code 4; the file is named, the secret is not shown, nothing is written."""
    where = put(study)
    code, out, err = harness("publish", "s", "-o", "public")

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert where in out
    assert TOKEN not in out
    assert err.startswith("nothing is published: remove the trials that have these")
    assert not Path("public").exists()
    assert [] == list(Path().glob(".tmp-*"))


def test_a_link_is_not_followed(study: Path, harness: Any) -> None:
    """In place of a picture it would lead to a file of the reader."""
    path = next(study.glob("trials/*/samples_*.png"))
    path.unlink()
    path.symlink_to("/etc/hostname")
    code, out, err = harness("publish", "s", "-o", "public")

    assert (exit_codes.USAGE, "") == (code, out)
    assert "it is a symbolic link" in err
    assert not Path("public").exists()


def test_a_damaged_study_and_a_place_in_use_are_one_line(
    study: Path, harness: Any
) -> None:
    """Exit code 2."""
    used = harness("publish", "s", "-o", str(study))
    next(study.glob("trials/*/env.json")).write_text("{")
    damaged = harness("publish", "s", "-o", "public")

    assert (exit_codes.USAGE, "") == used[:2]
    assert f"error: the output '{study}' exists; choose a new" in used[2]
    assert (exit_codes.USAGE, "") == damaged[:2]
    assert "nothing is published:" in damaged[2]
    assert "env.json is damaged" in damaged[2]
