"""``verify`` finds what was changed in a study, or says that it does not cover it."""

# ruff: noqa: E501 - tables read best with a row for each change.

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import forked_trials
import pytest

from harness.cli import exit_codes
from harness.cli import main as cli
from reports.page.build import write_report
from results.store import seal
from results.store.study_store import Store
from results.verify import seals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.processes

SWEEP = (
    *("sweep", "--workload=resnet50", "--preset=smoke", "--replicas=1,2"),
    *("--mode=weak", "--order=sequential", "--repeats=2", "--budget=8steps"),
    *("--study=s", "--no-match"),
)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: Any, overrides: Any) -> Path:
    """Returns a study with its page, measured by the fake worker."""
    root: Path = tmp_path_factory.mktemp("sealed")
    with (
        forked_trials.installed(overrides["worker_command"]),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(root)
        assert exit_codes.OK == cli.main(SWEEP, run_overrides=overrides)
    # The fake worker draws no pictures.
    store = Store(root / "runs" / "s")
    first = min(store.trial_ids())
    (store.trial_dir(first) / "samples_00000008.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    store.seal_trial(first)
    return store.root


@pytest.fixture
def study(sealed: Path, tmp_path: Path) -> Path:
    """Returns a copy to change."""
    shutil.copytree(sealed, tmp_path / "runs" / "s")
    return tmp_path / "runs" / "s"


def trials(root: Path) -> list[Path]:
    """Returns the folders of the timed trials."""
    plan = json.loads((root / "plan.json").read_text())
    timed = [t for t in plan["trials"] if not t["spec"].get("budget")]
    return [root / "trials" / trial["trial_id"] for trial in timed]


def change(path: Path, edit: Callable[[Any], None]) -> None:
    """Changes a record, and keeps how it is written."""
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record, indent=1) + "\n")


def of_backends(root: Path) -> tuple[Path, Path]:
    """Returns a trial of each of two backends, alike in all else."""
    by_backend: dict[str, Path] = {}
    for folder in trials(root):
        spec = json.loads((folder / "spec.json").read_text())
        if spec["num_replicas"] == 2 and spec["repetition_index"] == 0:
            by_backend[spec["backend"]] = folder
    one, other = by_backend.values()
    return one, other


def swap(root: Path, names: tuple[str, ...]) -> None:
    """Exchanges files of the trials of two backends, with the ids that they have."""
    one, other = of_backends(root)
    for name in names:
        texts = [(f / name).read_text() for f in (one, other)]
        (one / name).write_text(texts[1].replace(other.name, one.name))
        (other / name).write_text(texts[0].replace(one.name, other.name))


def drop_from_plan(root: Path, ids: set[str]) -> None:
    """Removes trials with their folders, and from the plan."""

    def edit(plan: Any) -> None:
        plan["trials"] = [t for t in plan["trials"] if t["trial_id"] not in ids]
        plan["repeats"] = 1

    change(root / "plan.json", edit)
    for trial_id in ids:
        shutil.rmtree(root / "trials" / trial_id)


def drop_generation(root: Path) -> None:
    """Removes all trials of the second repetition."""
    plan = json.loads((root / "plan.json").read_text())
    drop_from_plan(
        root,
        {
            trial["trial_id"]
            for trial in plan["trials"]
            if trial["spec"]["repetition_index"] == 1
        },
    )


def faster(root: Path) -> None:
    """Halves all step times of a trial, in its result and its observations."""
    folder = trials(root)[0]
    lines = []
    for line in (folder / "rank_0.jsonl").read_text().splitlines():
        fields = json.loads(line)
        for name in ("start_ns", "end_ns", "ns"):
            if name in fields:
                fields[name] //= 2
        lines.append(json.dumps(fields))
    (folder / "rank_0.jsonl").write_text("\n".join(lines) + "\n")


def set_in(name: str, **fields: Any) -> Callable[[Path], None]:
    """Returns what sets fields of a record of the first trial."""

    def run(root: Path) -> None:
        def edit(record: Any) -> None:
            assert set(fields) <= set(record), record
            record.update(fields)

        change(trials(root)[0] / name, edit)

    return run


def in_plan(**fields: Any) -> Callable[[Path], None]:
    """Returns what sets fields of the plan."""
    return lambda root: change(root / "plan.json", lambda plan: plan.update(fields))


def edit_seal(edit: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    """Returns what changes the lines of the seal."""

    def run(root: Path) -> None:
        path = root / seal.SEAL_NAME
        path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))

    return run


def fail_a_trial(root: Path) -> None:
    """An inconvenient trial becomes a failure."""
    folder = trials(root)[0]
    failure = {"phase": "measure", "reason": "lost"}
    change(
        folder / "status.json",
        lambda status: status.update({"status": "failed", "failure": failure}),
    )


def rename_trial(root: Path) -> None:
    """A trial that ended twice as slow, beside the one that was planned."""
    folder = trials(root)[0]
    shutil.copytree(folder, folder.with_name("0" * 20))


def copy_ranks(root: Path) -> None:
    """The observations of one repetition stand for two."""
    one, other = trials(root)[:2]
    shutil.copy(one / "rank_0.jsonl", other / "rank_0.jsonl")


TAMPERINGS: dict[str, Callable[[Path], None]] = {
    "a trial's folder is removed": lambda root: shutil.rmtree(trials(root)[0]),
    "a trial is removed, from the plan as well": lambda root: drop_from_plan(
        root, {trials(root)[0].name}
    ),
    "a generation is removed, from the plan as well": drop_generation,
    "two backends: results exchanged": lambda root: swap(root, ("result.json",)),
    "two backends: all numbers exchanged": lambda root: swap(
        root, ("result.json", "rank_0.jsonl", "status.json", "env.json")
    ),
    "step times halved": faster,
    "observations of another trial": copy_ranks,
    "observations removed": lambda root: (trials(root)[0] / "rank_0.jsonl").unlink(),
    "a result removed": lambda root: (trials(root)[0] / "result.json").unlink(),
    "a status removed": lambda root: (trials(root)[0] / "status.json").unlink(),
    "a trial becomes a failure": fail_a_trial,
    "a trial is added": rename_trial,
    "CPU model": set_in("env.json", cpu_model="Cray-1"),
    "cores of the machine": set_in("env.json", num_physical_cores=64),
    "load before": set_in("env.json", load_average_before=0.0),
    "load of others": set_in("env.json", foreign_cpu_fraction=0.0001),
    "canary": set_in("env.json", canary_before_sec=0.1),
    "machine": set_in("env.json", fingerprint="0" * 20),
    "when it started": set_in("status.json", started_at="2020-01-01T00:00:00+00:00"),
    "how long it took": set_in("status.json", duration_sec=1.0),
    "command": in_plan(command=["python", "-m", "harness", "sweep", "--quiet"]),
    "name of the study": in_plan(study="another"),
    "time of the plan": in_plan(created_at="2020-01-01T00:00:00+00:00"),
    "a picture": lambda root: next(root.glob("trials/*/*.png")).write_bytes(b"x") and None,
    "a picture is added": lambda root: (
        (trials(root)[-1] / "samples_00000009.png").write_bytes(b"x") and None
    ),
    "the seal is removed": lambda root: (root / seal.SEAL_NAME).unlink(),
    "a line of the seal is removed": edit_seal(lambda lines: lines[:3] + lines[4:]),
    "a line of the seal is changed": edit_seal(
        lambda lines: [*lines[:2], lines[2].replace(b'"of": "', b'"of": "x'), *lines[3:]]
    ),
    "two lines of the seal are exchanged": edit_seal(
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]]
    ),
}  # fmt: skip


def verified(harness: Any, *options: str) -> tuple[int, Any]:
    """Runs ``verify``; returns its exit code and data."""
    code, out, err = harness("verify", "s", "--json", *options)
    assert not err, err
    return code, json.loads(out)


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_tampering_is_found(study: Path, harness: Any, name: str) -> None:
    """Exit code 4, or 2 where the records contradict themselves; never 0."""
    shutil.rmtree(study / "report")
    TAMPERINGS[name](study)
    code, out, err = harness("verify", "s")

    assert code in (exit_codes.SOME_TRIALS_FAILED, exit_codes.USAGE), (out, err)
    assert re.search("^differs: |^error: ", out + err, re.MULTILINE)


def test_an_untouched_study_is_sealed(study: Path, harness: Any) -> None:
    """And it says at last what it does not cover."""
    write_report(Store(study))
    code, out, _ = harness("verify", "s")
    lines = out.splitlines()

    assert exit_codes.OK == code, out
    (head,) = re.findall(
        r"^sealed: 12 trials; the seal ends (\w{40})$", out, re.MULTILINE
    )
    assert seal.read(study)[1] == head  # type: ignore[index]
    assert [f"not covered: {w}" for w in (seals.NOT_SIGNED, seals.ALWAYS)] == lines[-2:]


def test_what_is_not_covered_is_as_it_says(study: Path, harness: Any) -> None:
    """A seal that is made anew, and one that is cut with what it seals."""
    shutil.rmtree(study / "report")
    set_in("env.json", cpu_model="Cray-1")(study)
    (study / seal.SEAL_NAME).unlink()
    store = Store(study)
    plan = (study / "plan.json").read_bytes()
    seal.append(study, "plan.json", {"plan.json": seal.digest(plan)})
    for trial_id in store.trial_ids():
        store.seal_trial(trial_id)
    code, data = verified(harness)

    assert exit_codes.OK == code
    assert seals.NOT_SIGNED in data["not_covered"]


WORDS: dict[str, Callable[[str], str]] = {
    "a word is removed": lambda page: re.sub(r"\bnot \b", "", page, count=1),
    "a word is replaced": lambda page: page.replace(" the ", " a ", 1),
    "a sentence is added": lambda page: page.replace("</p>", " All is well.</p>", 1),
    "a script is added": lambda page: page.replace("</body>", "<script></script></body>"),
    "a style is added": lambda page: page.replace("</head>", "<style></style></head>"),
    "a link leads elsewhere": lambda page: page.replace('href="#', 'href="#x', 1),
    "a name of a backend": lambda page: page.replace("in_graph", "in_grapf", 1),
    "blank space": lambda page: page + "\n",
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_a_change_of_the_pages_words_is_found(
    study: Path, harness: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is compared byte for byte with the one that is built.

    It is built once, by the sweep; the test of an untouched study builds it again.
    """
    page = study / "report" / "index.html"
    text = page.read_text()
    monkeypatch.setattr("reports.page.build.build_report", lambda _: text)
    changed = WORDS[name](text)
    assert changed != text
    page.write_text(changed)
    code, data = verified(harness)

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert "text of the page" in {item["kind"] for item in data["differences"]}


def test_a_study_of_an_earlier_version_is_not_sealed(study: Path, harness: Any) -> None:
    """It stays readable, is verified, and the words say what that leaves out."""
    shutil.rmtree(study / "report")
    (study / seal.SEAL_NAME).unlink()
    for path in study.glob("trials/*/rank_*.jsonl"):
        path.write_text(path.read_text().partition("\n")[2])
    code, data = verified(harness)

    assert exit_codes.OK == code
    assert {"num_sealed": 0, "num_unsealed": 12, "head": "", "signer": ""} == data[
        "seal"
    ]
    assert data["not_covered"][0] == seals.NOT_SEALED.format(12, 12)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_a_signature_says_whose_study_it_is(
    study: Path, harness: Any, tmp_path: Path
) -> None:
    """By a listed key; another key, a changed seal and no signature are differences."""
    shutil.rmtree(study / "report")
    key, signers = tmp_path / "key", tmp_path / "signers"
    path = study / seal.SEAL_NAME
    with_signers = f"--signers={signers}"
    signers.write_text("")
    assert exit_codes.SOME_TRIALS_FAILED == verified(harness, with_signers)[0]
    for command in (
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "jane", "-f", str(key)],
        ["ssh-keygen", "-Y", "sign", "-n", "replicator-harness", "-f", str(key), str(path)],
    ):  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
    code, anybody = verified(harness)
    assert exit_codes.OK == code
    assert "Good" in anybody["seal"]["signer"]
    assert exit_codes.SOME_TRIALS_FAILED == verified(harness, with_signers)[0]
    public = key.with_suffix(".pub").read_text()
    signers.write_text(f"jane@example.org {public}")
    code, data = verified(harness, with_signers)
    assert exit_codes.OK == code
    assert "jane@example.org" in data["seal"]["signer"]
    assert [seals.ALWAYS] == data["not_covered"]
    Store(study).seal_trial(trials(study)[0].name)
    assert exit_codes.SOME_TRIALS_FAILED == verified(harness)[0]


def test_a_missing_file_of_signers_is_one_line(study: Path, harness: Any) -> None:
    """Exit code 2."""
    (study / f"{seal.SEAL_NAME}.sig").touch()
    code, _, err = harness("verify", "s", "--signers=nowhere")

    assert exit_codes.USAGE == code
    assert "error: --signers 'nowhere' is no file; give one with a line for" in err
