"""``verify`` finds what was changed in a study, or says that it does not cover it."""

# ruff: noqa: E501 - tables read best with a row for each change.

import json
import re
import shutil
import subprocess

import forked_trials
import pytest

from harness.cli import exit_codes
from harness.cli import main as cli
from reports.page.build import write_report
from results.store import manifest
from results.store.study_store import Store
from results.verify import check

pytestmark = pytest.mark.processes

SWEEP = (
    *("sweep", "--workload=resnet50", "--preset=smoke", "--replicas=1,2"),
    *("--mode=weak", "--order=sequential", "--repeats=2", "--budget=8steps"),
    *("--study=s", "--no-match"),
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory, overrides):
    root = tmp_path_factory.mktemp("measured")
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
    store.list_trial(first)
    return store.root


@pytest.fixture
def study(measured, tmp_path):
    shutil.copytree(measured, tmp_path / "runs" / "s")
    return tmp_path / "runs" / "s"


def trials(root):
    plan = json.loads((root / "plan.json").read_text())
    timed = [t for t in plan["trials"] if not t["spec"].get("budget")]
    return [root / "trials" / trial["trial_id"] for trial in timed]


def change(path, edit):
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record, indent=1) + "\n")


def of_backends(root):
    by_backend = {}
    for folder in trials(root):
        spec = json.loads((folder / "spec.json").read_text())
        if spec["num_replicas"] == 2 and spec["repetition_index"] == 0:
            by_backend[spec["backend"]] = folder
    one, other = by_backend.values()
    return one, other


def swap(root, names):
    """Exchanges files of the trials of two backends, with the ids that they have."""
    one, other = of_backends(root)
    for name in names:
        texts = [(f / name).read_text() for f in (one, other)]
        (one / name).write_text(texts[1].replace(other.name, one.name))
        (other / name).write_text(texts[0].replace(one.name, other.name))


def drop_from_plan(root, ids):
    def edit(plan):
        plan["trials"] = [t for t in plan["trials"] if t["trial_id"] not in ids]
        plan["repeats"] = 1

    change(root / "plan.json", edit)
    for trial_id in ids:
        shutil.rmtree(root / "trials" / trial_id)


def drop_generation(root):
    plan = json.loads((root / "plan.json").read_text())
    drop_from_plan(
        root,
        {
            trial["trial_id"]
            for trial in plan["trials"]
            if trial["spec"]["repetition_index"] == 1
        },
    )


def faster(root):
    folder = trials(root)[0]
    lines = []
    for line in (folder / "rank_0.jsonl").read_text().splitlines():
        fields = json.loads(line)
        for name in ("start_ns", "end_ns", "ns"):
            if name in fields:
                fields[name] //= 2
        lines.append(json.dumps(fields))
    (folder / "rank_0.jsonl").write_text("\n".join(lines) + "\n")


def set_in(name, **fields):
    def run(root):
        def edit(record):
            assert set(fields) <= set(record), record
            record.update(fields)

        change(trials(root)[0] / name, edit)

    return run


def in_plan(**fields):
    return lambda root: change(root / "plan.json", lambda plan: plan.update(fields))


def edit_manifest(edit):
    def run(root):
        path = root / manifest.MANIFEST_NAME
        path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))

    return run


def fail_a_trial(root):
    folder = trials(root)[0]
    failure = {"phase": "measure", "reason": "lost"}
    change(
        folder / "status.json",
        lambda status: status.update({"status": "failed", "failure": failure}),
    )


def rename_trial(root):
    folder = trials(root)[0]
    shutil.copytree(folder, folder.with_name("0" * 20))


TAMPERINGS = {
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
    "observations of another trial": lambda root: shutil.copy(
        *(folder / "rank_0.jsonl" for folder in trials(root)[:2])
    ) and None,
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
    "the manifest is removed": lambda root: (root / manifest.MANIFEST_NAME).unlink(),
    "a line of the manifest is removed": edit_manifest(lambda lines: lines[:3] + lines[4:]),
    "a trial's lines are removed": lambda root: edit_manifest(
        lambda lines: [of for of in lines if trials(root)[0].name.encode() not in of]
    )(root),
    "a digest is changed": edit_manifest(
        lambda lines: [*lines[:2], b"0" * 64 + lines[2][64:], *lines[3:]]
    ),
    "two digests are exchanged": edit_manifest(
        lambda lines: [lines[0], lines[1][:64] + lines[2][64:], lines[2][:64] + lines[1][64:], *lines[3:]]
    ),
    "the manifest is cut": edit_manifest(lambda lines: [*lines[:-1], lines[-1][:70]]),
    "an earlier attempt is added": lambda root: shutil.copytree(
        trials(root)[0], root / "earlier" / f"{trials(root)[0].name}-1"
    ) and None,
}  # fmt: skip


def verified(harness, *options):
    code, out, err = harness("verify", "s", "--json", *options)
    assert not err, err
    return code, json.loads(out)


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_tampering_is_found(study, harness, name):
    """Exit code 4, or 2 where the records contradict themselves; never 0."""
    shutil.rmtree(study / "report")
    TAMPERINGS[name](study)
    code, out, err = harness("verify", "s")

    assert code in (exit_codes.SOME_TRIALS_FAILED, exit_codes.USAGE), (out, err)
    assert re.search("^differs: |^error: ", out + err, re.MULTILINE)


def test_an_untouched_study_is_listed(study, harness):
    write_report(Store(study))
    code, out, _ = harness("verify", "s")
    sums = (study / manifest.MANIFEST_NAME).read_text()
    paths = {line.partition("  ")[2] for line in sums.splitlines() if line[0] != "#"}

    assert exit_codes.OK == code, out
    assert "\nSHA256SUMS: the files of 12 trials\n" in out
    assert f"not covered: {check.NOT_COVERED}" == out.splitlines()[-1]
    names = ("spec", "env", "result", "status")
    assert {
        "plan.json",
        *(f"trials/{of.name}/{name}.json" for of in trials(study) for name in names),
    } < paths
    command = ["sha256sum", "--check", "--strict", "--quiet", manifest.MANIFEST_NAME]
    assert not subprocess.run(
        command, cwd=study, check=True, capture_output=True
    ).stdout


def test_a_kill_between_a_file_and_its_digest_is_understood(study, harness):
    """A status or plan of before, or of after, is no tampering."""
    shutil.rmtree(study / "report")
    folder, plan = trials(study)[0], study / "plan.json"
    status, of = folder / "status.json", f"trials/{folder.name}"
    text = status.read_bytes()
    status.unlink()
    Store(study).list_trial(folder.name, {"status.json": manifest.digest(text)})
    code, data = verified(harness)
    assert exit_codes.SOME_TRIALS_FAILED == code
    assert [f"{of} was stopped as it ended; run the same command again"] == data[
        "missing"
    ]
    status.write_bytes(text)
    assert exit_codes.OK == verified(harness)[0]

    for is_written in (True, False):
        changed = plan.read_bytes() + b"\n"
        manifest.renew(study, "plan.json", {"plan.json": manifest.digest(changed)})
        assert exit_codes.OK == verified(harness)[0]
        if is_written:
            plan.write_bytes(changed)
        assert exit_codes.OK == verified(harness)[0]
        Store(study).list_trial(folder.name)
        assert exit_codes.OK == verified(harness)[0]
    plan.write_bytes(plan.read_bytes() + b"\n")
    assert exit_codes.SOME_TRIALS_FAILED == verified(harness)[0]


def test_what_is_not_covered_is_as_it_says(study, harness):
    shutil.rmtree(study / "report")
    set_in("env.json", cpu_model="Cray-1")(study)
    Store(study).list_trial(trials(study)[0].name)
    code, data = verified(harness)

    assert exit_codes.OK == code
    assert [check.NOT_COVERED] == data["not_covered"]


WORDS = {
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
def test_a_change_of_the_pages_words_is_found(study, harness, name, monkeypatch):
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
    assert "page" in {item["kind"] for item in data["differences"]}


@pytest.mark.parametrize("has_seal", [False, True])
def test_a_study_of_an_earlier_version_is_not_listed(study, harness, has_seal):
    """It stays readable, is verified, and the words say what that leaves out."""
    shutil.rmtree(study / "report")
    (study / manifest.MANIFEST_NAME).unlink()
    if has_seal:
        (study / "seal.jsonl").write_text("of an earlier version\n")
    else:
        for path in study.glob("trials/*/rank_*.jsonl"):
            path.write_text(path.read_text().partition("\n")[2])
    code, data = verified(harness)

    assert exit_codes.OK == code
    assert {"num_listed": 0, "num_unlisted": 12} == data["manifest"]
    assert data["not_covered"][0] == check.NOT_LISTED.format(12, 12)
