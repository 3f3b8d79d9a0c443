"""Raw records that readers of a page can download, and recompute its figures from."""

import hashlib
import io
import random
import re
import shutil
import zipfile

import pytest
import study_files
from click.testing import CliRunner

from harness import ExitCode, command_line
from reports import FORMATS
from results import Store, TrialStatus, opened

STUDY = "resnet50-two-cores"
TOKEN = "hf_" + "aB" * 17


def zip_of(store):
    return FORMATS["zip"].export([store], None)


def run(*words):
    return CliRunner().invoke(command_line, [*map(str, words)])


def test_verify_accepts_what_was_downloaded(tmp_path):
    original = study_files.published(STUDY)
    path = tmp_path / "records.zip"
    path.write_bytes(zip_of(Store.open(original)))
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
        file.extractall(tmp_path / "unpacked")
    records = {p for p in original.rglob("*") if p.suffix in {".json", ".jsonl"}}
    done = run("verify", path)

    for name in names:
        kept = (original.parent / name).read_bytes()
        assert (tmp_path / "unpacked" / name).read_bytes() == kept, name
    assert {original.parent / name for name in names} >= records
    with opened(tmp_path / "unpacked") as unpacked:
        assert STUDY == unpacked.name
    assert ExitCode.OK == done.exit_code, done.output
    assert re.search(
        r"^verified: \d+ headline figures are as rec", done.output, re.MULTILINE
    )


OLD = {  # until 2026-11-29
    '"blocks":': '"turns":',
    '"discard_reason":': '"void_reason":',
    '"repetition_sec":': '"generation_sec":',
    '"equivalence":': '"matching":',
    '"status": "discarded"': '"status": "void"',
    '"status": "failed_checks"': '"status": "insane"',
}


def test_a_study_with_the_old_names_is_verified_and_exported_with_the_new(tmp_path):
    original = study_files.published(STUDY)
    shutil.copytree(original, root := tmp_path / STUDY)
    for path in root.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        for new, name in OLD.items():
            text = text.replace(new, name)
        path.write_text(text, encoding="utf-8")
    for path in root.rglob("blocks.jsonl"):
        path.rename(path.with_name("turns.jsonl"))
    manifest = root / "SHA256SUMS"
    listed = re.findall(r"  (\S+)$", manifest.read_text(), re.MULTILINE)
    names = [name.replace("/blocks.jsonl", "/turns.jsonl") for name in listed]
    sums = [hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names]
    pairs = zip(sums, names, strict=True)
    manifest.write_text("".join(f"{one}  {name}\n" for one, name in pairs))
    done = run("verify", root)

    assert 2 <= sum(b"void_reason" in p.read_bytes() for p in root.rglob("result.json"))
    assert ExitCode.OK == done.exit_code, done.output
    with zipfile.ZipFile(io.BytesIO(zip_of(Store.open(root)))) as file:
        for name in set(file.namelist()) - {f"{STUDY}/SHA256SUMS"}:
            kept = original.parent / name.replace("/turns.jsonl", "/blocks.jsonl")
            assert file.read(name) == kept.read_bytes(), name


@pytest.fixture
def write(tmp_path, synthetic, monkeypatch):
    """Returns a function that writes a site of two small studies without figures."""
    monkeypatch.setattr("reports.page.build.SECTIONS", ())
    shape = {"modes": (synthetic.WEAK,), "repeats": 1, "num_measured_steps": 2}
    for name in ("a", "b"):
        synthetic.make_store(tmp_path / name, synthetic.Shape(name=name, **shape))

    def write_site(*options):
        studies = ("a", "b", "--runs-dir", tmp_path, "-o", tmp_path / "site")
        done = run("report", *studies, *options)
        assert ExitCode.OK == done.exit_code, done.output
        return done.stderr

    return write_site


def test_records_are_beside_each_page_or_linked_elsewhere(write, tmp_path):
    folder = tmp_path / "site" / "studies" / "a"
    write("--data-url=https://example.org/{study}.zip?a=1&b=2")
    link = 'href="https://example.org/a.zip?a=1&amp;b=2"'
    assert link in (folder / "index.html").read_text()
    assert not (folder / "records.zip").exists()

    assert "no raw records" not in write()
    for name in ("a", "b"):
        folder = tmp_path / "site" / "studies" / name
        assert 'href="records.zip"' in (folder / "index.html").read_text()
        with zipfile.ZipFile(folder / "records.zip") as file:
            assert f"{name}/plan.json" in file.namelist()


def test_too_large_or_damaged_records_are_not_put_there(write, tmp_path):
    noise = random.Random(1).randbytes(2**21)
    (trial,) = [*(tmp_path / "a").glob("trials/*")][:1]
    length = len(noise).to_bytes(4, "big")
    png = b"\x89PNG\r\n\x1a\n" + length + b"IDAT" + noise + bytes(4)
    (trial / "samples_1.png").write_bytes(png + bytes(4) + b"IEND" + bytes(4))
    too_large = write()
    page = (tmp_path / "site" / "studies" / "a" / "index.html").read_text()
    next((tmp_path / "a").glob("trials/*/env.json")).write_text("{")
    damaged = write()

    assert re.search(
        r"the records of 'a' are 2.1 MB as a zip, at most .*as --data-url$",
        too_large,
        re.MULTILINE,
    )
    assert "Raw records (zip)" not in page
    assert re.search(
        r"no records of 'a' are exported: trials/\w+/env.json is damaged \(not JSON",
        damaged,
    )


def planted(synthetic, monkeypatch, root):
    """Returns a study with something private in every place where a text can be."""
    plain = synthetic._spec

    def spec(*args, **fields):
        variables = {"XLA_FLAGS": "--xla_dump_to=/mnt/team-x/jane/dump"}
        options = {"hub": f"token={TOKEN}"}
        update = {"variables": variables, "options": options}
        return plain(*args, **fields).model_copy(update=update)

    monkeypatch.setattr(synthetic, "_spec", spec)
    failed = {("tf_mirrored", synthetic.WEAK, 2, 1): TrialStatus.FAILED}
    shape = synthetic.Shape(statuses=failed, budget=synthetic.LEARNING)
    store = synthetic.make_store(root, shape)
    plan = store.read_plan()
    command = (*plan.command, "--data-dir=/mnt/team-x/data", "--token", TOKEN)
    update = {"command": command, "data_dir": "/mnt/team-x/data"}
    store.write_plan(plan.model_copy(update=update))
    for trial in store.trials():
        folder = store.trial_dir(trial.trial_id)
        (folder / "stdout.log").write_text(f"logged in with {TOKEN}")
        for picture in folder.glob("samples_*.png"):
            picture.write_bytes(picture.read_bytes() + TOKEN.encode())
        if trial.status.failure is not None:
            reason = f"401 for {TOKEN} of jane.doe@corp.example at http://10.1.2.3/x"
            update = {"reason": reason, "traceback": f"File '/mnt/team-x': {TOKEN}"}
            failure = trial.status.failure.model_copy(update=update)
            status = trial.status.model_copy(update={"failure": failure})
            store.write_status(trial.trial_id, status)
    return store


def test_nothing_private_is_in_any_export(synthetic, tmp_path, monkeypatch):
    store = planted(synthetic, monkeypatch, tmp_path / "runs" / "s")
    before = {p: p.read_bytes() for p in store.root.rglob("*") if p.is_file()}
    out = tmp_path / "out"
    for form in FORMATS:
        done = run("report", store.root, "--format", form, "-o", out / form)
        assert not done.exception, (form, done.output)
    zipfile.ZipFile(out / "zip").extractall(out / "unpacked")
    written = [path for path in out.rglob("*") if path.is_file()]
    again = Store.open(out / "unpacked" / "s")
    verified = run("verify", out / "zip")
    page = run("report", out / "zip", "-o", out)

    assert len(written) > len(FORMATS)
    for path in written:
        content = path.read_bytes().decode("utf-8", errors="replace")
        for text in (TOKEN, "team-x", "jane", "corp.example", "10.1.2.3"):
            assert text not in content, (path, text)
    assert before == {p: p.read_bytes() for p in before}
    assert any(path.suffix == ".png" for path in written)
    assert "401 for ***" in (out / "html").read_text()
    assert not {p.name for p in written} & {"stdout.log", "stderr.log"}
    assert [] == list(again.read().problems)
    assert all(trial.spec.is_abridged for trial in again.trials())
    assert ExitCode.OK == verified.exit_code, verified.output
    assert (out / "index.html").read_text() == (out / "html").read_text(), page.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--data-url=file"), r"--data-url 'file' is no address; give one that"),
        (("a", "--source-url=x"), r"--source-url 'x' is no address; give one that"),
        (
            ("a", "--format=csv", "--source-url=https://example.org"),
            r"--source-url is a link on the page of a study, and none is written here",
        ),
        (
            ("a", "--format=json", "--data-url=https://example.org"),
            r"--data-url is a link on the page of a study, and none is written here",
        ),
        (
            ("a", "b", "-o", "site", "--data-url=https://example.org"),
            r"'https://example.org' is the same for 2 studies; put \{study\} where",
        ),
    ],
)
@pytest.mark.usefixtures("write")
def test_an_address_that_cannot_be_used_is_refused(tmp_path, arguments, message):
    done = run("report", *arguments, "--runs-dir", tmp_path)

    assert re.search(message, str(done.exception)), done.output
    assert not (tmp_path / "site").exists()
