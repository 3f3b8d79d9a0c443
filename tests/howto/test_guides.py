"""Whoever does exactly what a how-to guide says has added what it is about.

The blocks of a guide with a title are files, its diffs are changes: both are applied to
a copy of the project. Then the guide's own tests and commands run there.
"""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import covering
import published_studies
import pytest

from results.figures import frame
from results.store.study_store import Store
from results.study.cases import load_study

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "howto"
TIMEOUT_SEC = 240
INVENTORIES = "tests/docs/test_inventories.py"
NOT_COPIED = (".git", ".venv*", "runs", "build", ".*_cache")

_FILE = re.compile(
    r'^```\w+ title="(?P<path>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)
_DIFF = re.compile(r"^```diff\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^    (?:\.venv/bin/)?python (?P<rest>-m .+)$", re.MULTILINE)

pytestmark = pytest.mark.processes


def files_of(guide):
    return {match["path"]: match["text"] for match in _FILE.finditer(guide)}


def diffs_of(guide):
    return [match["text"] for match in _DIFF.finditer(guide)]


def commands_of(guide):
    return [
        shlex.split(match["rest"], comments=True) for match in _COMMAND.finditer(guide)
    ]


def apply(guide, tree):
    """Writes the files of a guide, and applies its changes."""
    for path, text in files_of(guide).items():
        target = tree / path
        assert not target.exists(), f"{path} is there already"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for diff in diffs_of(guide):
        done = subprocess.run(
            ["git", "apply", "-"],
            input=diff,
            capture_output=True,
            text=True,
            check=False,
            cwd=tree,
            # A folder of temporary files may be in a repository, where git skips what
            # is outside of its index.
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
        )
        assert done.returncode == 0, f"{diff}\n{done.stderr}"


def python(tree, arguments, *, code=0):
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tree,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            # Before the folder of these tests, which makes imports quick.
            "PYTHONPATH": os.pathsep.join(
                [str(tree), os.environ.get("PYTHONPATH", "")]
            ),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        timeout=TIMEOUT_SEC,
    )
    said = f"{arguments}\n{done.stdout[-6000:]}\n{done.stderr}"
    assert done.returncode == code, said
    return done.stderr if code else done.stdout


_SEVERAL = """
import contextlib, io, json, sys
from harness.cli.main import main
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    answers.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""


def harness(tree, *lines, code=0, extra=""):
    """Runs command lines that are in no guide in one process, which imports once."""
    said = python(tree, ["-c", extra + _SEVERAL, json.dumps(lines)])
    answers = json.loads(said.splitlines()[-1])
    assert [code] * len(lines) == [answer[0] for answer in answers], answers
    return [err if code else out for _, out, err in answers]


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Makes a copy of the project in which a guide was followed, once."""

    @functools.cache
    def follow(name):
        guide = (GUIDES / f"{name}.md").read_text(encoding="utf-8")
        tree = tmp_path_factory.mktemp(name) / "project"
        ignored = shutil.ignore_patterns(*NOT_COPIED)
        shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
        apply(guide, tree)
        return tree, guide

    return follow


def test_a_backend_is_added(followed):
    """It is planned, documented, and keeps what it promises."""
    tree, guide = followed("backend")
    plan, conformance = commands_of(guide)[:2]

    assert "tf_one_device" in python(tree, plan)
    chosen = conformance[-1]
    if not covering.is_full():
        chosen = f"{chosen} and not (trains or fits)"
    # In one process, which imports TensorFlow once.
    chosen = f"({chosen}) or (test_inventories and backend)"
    tested = python(tree, [*conformance[:-2], INVENTORIES, "-k", chosen])
    assert re.search(r"\d\d+ passed", tested), tested
    assert "failed" not in tested


def test_a_collective_is_added(followed):
    """It works on every backend, is fuzzed, and touches two files of the product."""
    tree, guide = followed("collective")
    changed = {*files_of(guide), *re.findall(r"^\+\+\+ b/(.+)$", guide, re.MULTILINE)}
    product = {path for path in changed if path.startswith("replicator/")}
    fuzz, conformance = commands_of(guide)[:2]
    own = ["tests/replicator/collectives/test_shift.py", INVENTORIES]

    assert 2 == len(product - {"replicator/README.md"})
    if covering.is_full():
        for arguments in (fuzz, conformance, ["-m", "pytest", "-q", *own]):
            assert "failed" not in python(tree, arguments)
        return
    chosen = f"{conformance[-1]} and (single or in_graph or tf_) and not worker"
    names = " or ".join(Path(file).stem for file in own)
    # In one process, which imports TensorFlow once.
    tested = python(
        tree,
        [
            *("-m", "pytest", "-q", "-rp", *own, conformance[2], fuzz[2], "-k"),
            f"{names} or (conformance and {chosen}) or (fuzz and (grammar or agree))",
        ],
    )
    assert "failed" not in tested
    for path in (*own, conformance[2], fuzz[2]):
        assert f"PASSED {path}" in tested, path


def test_a_workload_is_added(followed):
    """Its own tests pass, and a sweep of it is planned."""
    tree, guide = followed("workload")
    (sweep,) = commands_of(guide)

    # Its two tests, and the lists that name every workload, one of them this one.
    tested = python(
        tree,
        [
            *("-m", "pytest", "-q", "tests/workloads/softmax", INVENTORIES),
            *("-k", "test_softmax or (test_inventories and workload and softmax)"),
        ],
    )
    assert "3 passed" in tested
    if not covering.is_full():
        planned = python(tree, [*sweep, "--dry-run"])
        assert re.search(r"\b2 trials", planned), planned
        return
    python(tree, [*sweep, "--study", "new"])
    trials = frame.trials_frame(Store.open(tree / "runs" / "new"))
    assert ["ok", "ok"] == trials.status.tolist()
    assert trials.quality_top_1.between(0.0, 1.0, inclusive="neither").all()
    assert (tree / "runs" / "new" / "report" / "index.html").is_file()


def shorten(path):
    """Leaves one block in each of two stages of a ResNet, which is traced sooner."""
    text = path.read_text(encoding="utf-8")
    for name, values in (("NUM_BLOCKS", (1, 1)), ("WIDTHS", (8, 16))):
        text, found = re.subn(
            rf"^{name} = .*$", f"{name} = {values}", text, flags=re.MULTILINE
        )
        assert 1 == found
    path.write_text(text, encoding="utf-8")


def test_a_metric_is_added(followed):
    """One entry is measured, and is in the page, the exports, the gate and its help."""
    tree, guide = followed("metric")
    (sweep,) = commands_of(guide)
    if not covering.is_full():
        shorten(tree / "workloads" / "resnet50" / "model.py")

    tested = python(tree, ["-m", "pytest", "-q", "tests/results/figures/test_tail.py"])
    assert "2 passed" in tested
    python(tree, [*sweep, "--study", "new"])
    page = (tree / "runs/new/report/index.html").read_text(encoding="utf-8")
    report = ("report", "new", "--format")
    rule = (
        "from harness.cli.verbs import gate_request as of\n"
        "assert 0.02 == of.make_rule(workload='resnet50', metric='reciprocal_rank',"
        " delta=None, alpha=0.05).delta\n"
    )
    as_json, as_csv, of_gate = harness(
        tree, (*report, "json"), (*report, "csv"), ("gate", "--help"), extra=rule
    )
    (facts,) = (
        of for of in json.loads(as_json)["metrics"] if of["name"] == "reciprocal_rank"
    )
    assert "Mean reciprocal rank" in page
    assert (True, 0.02) == (facts["is_higher_better"], facts["tolerance"])
    assert ",reciprocal_rank," in as_csv
    assert "reciprocal_rank (resnet50)" in " ".join(of_gate.split())


def test_a_section_is_added(followed):
    """The page of a kept study has it, in its place."""
    tree, guide = followed("section")
    (report,) = commands_of(guide)

    python(tree, report)
    page = (tree / "report.html").read_text(encoding="utf-8")
    ids = re.findall(r'<section [^>]*id="(\w+)"', page)
    assert ids.index("steps") + 1 == ids.index("slowest")
    assert "Slowest measured step" in page or "Slowest step" in page
    python(tree, ["-m", "pytest", "-q", "tests/docs/test_links.py", "-k", "section"])


@pytest.fixture
def lsf(tmp_path, monkeypatch):
    """Puts stand-ins of ``bsub`` and ``blaunch`` first on the path, in a folder."""
    programs = tmp_path / "lsf"
    programs.mkdir()
    bsub = shlex.join(
        [sys.executable, "-S", str(ROOT / "tests/support/machines/bsub.py")]
    )
    for name, text in (("bsub", f'{bsub} "$@"'), ("blaunch", 'shift; exec "$@"')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LSF_FOLDER", str(programs))
    monkeypatch.setenv("LSF_HOSTS", "localhost,127.0.0.1")
    monkeypatch.setenv("LSF_QUEUES", "short,normal")
    return programs


def written(tree, pattern, num_lines=1):
    """Waits for a file that a job writes; returns its text."""
    deadline = time.monotonic() + TIMEOUT_SEC
    while True:
        texts = [path.read_text(encoding="utf-8") for path in tree.glob(pattern)]
        if texts and len(texts[0].splitlines()) >= num_lines:
            return texts[0]
        assert time.monotonic() < deadline, (
            pattern,
            [path.read_text(encoding="utf-8") for path in tree.glob("*.log")],
        )
        time.sleep(0.1)


def test_a_launcher_is_added(followed, lsf, monkeypatch):
    """It submits, starts trials on two hosts, records failures, and has own options."""
    tree, guide = followed("launcher")
    sweep, render = commands_of(guide)
    assert ["-m", "harness"] == sweep[:2] == render[:2]
    tested = python(tree, ["-m", "pytest", "-q", "tests/harness/launch/test_lsf.py"])
    assert "4 passed" in tested
    if not covering.is_full():
        sweep = [str(tree / "tests" / "cluster_engines" / "driver.py"), *sweep[2:]]
    sweep = [*sweep, "--no-match", "--study"]

    assert python(tree, [*sweep, "new"]).strip().isdigit()
    trial = json.loads(written(tree, "runs/new/trials/*/status.json"))
    assert "ok" == trial["status"], trial
    spec = json.loads(written(tree, "runs/new/trials/*/spec.json"))
    assert "2" == spec["variables"]["REPLICATOR_HARNESS_HOSTS"]
    (job,) = map(json.loads, (lsf / "accepted.jsonl").open(encoding="utf-8"))
    assert ("2", "short", "30", True) == (job["n"], job["q"], job["W"], job["x"])

    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:rank1_sigkill")
    if not covering.is_full():
        python(tree, [*sweep, "broken"])
        trial = json.loads(written(tree, "runs/broken/trials/*/status.json"))
        # Another process of this machine may have been short of memory meanwhile.
        is_counted = re.search(r"counted \d", trial["failure"]["reason"])
        assert ("out_of_memory" if is_counted else "failed") == trial["status"]
        assert "rank 1 was in phase " in trial["failure"]["reason"]


REFUSED = [
    (
        ["--launcher=lsf", "--pod-template=a.yaml"],
        "--pod-template a.yaml has no effect with --launcher lsf; add --launcher kuber",
    ),
    (
        ["--launcher=slurm", "--queue=short"],
        "--queue short has no effect with --launcher slurm; add --launcher lsf",
    ),
    (["--launcher=lsf", "--nodes=7"], "bsub refuses: Too many processors request"),
    (["--launcher=lsf", "--queue=night"], "bsub refuses: night: No such queue"),
    (["--launcher=lsf", "--queue=a b"], "--queue 'a b' is not the name of a queue"),
    (["--launcher=lsf", "--time-limit=x"], "--time-limit: 'x' is not a duration"),
]


def test_no_option_of_an_added_launcher_is_ignored(followed, lsf):
    """Each is used, or refused; nothing is written."""
    tree, guide = followed("launcher")
    words = commands_of(guide)[0]
    plain = words[words.index("--workload") :]

    lines = [("sweep", "--study=refused", *plain, *more) for more, _ in REFUSED]
    answers = harness(tree, *lines, code=2)
    for said, (_, message) in zip(answers, REFUSED, strict=True):
        assert message in said
    assert not (tree / "runs" / "refused").exists()


def test_the_file_of_an_added_launcher_starts_a_gang(followed, lsf):
    """Each worker finds out who it is, and where the others are."""
    tree, guide = followed("launcher")
    render = commands_of(guide)[1]
    own = render.index("--")
    program = [sys.executable, str(tree / "tests/harness/launch/gang_identity.py")]
    number = render.index("--workers") + 1
    python(tree, [*render[:number], "2", *render[number + 1 : own], "--", *program])
    with (tree / "train.bsub").open("rb") as file:
        subprocess.run(["bsub"], stdin=file, check=True, cwd=tree)
    lines = written(tree, "train-101.0.log", num_lines=2).splitlines()
    workers = sorted(map(json.loads, lines), key=lambda worker: worker["worker_id"])

    assert [(0, 0), (1, 0)] == [(w["worker_id"], w["local_worker_id"]) for w in workers]
    assert {2} == {worker["num_workers"] for worker in workers}
    assert workers[0]["addresses"] == workers[1]["addresses"]


def test_the_code_of_every_guide_passes_the_linter():
    """Whoever copies it can propose it; a test of this file follows each guide."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    source = Path(__file__).read_text(encoding="utf-8")
    # Those of programs from outside of the tree are followed in an empty folder.
    followed = set(re.findall(r'(?:followed\("|GUIDES / ")(\w+)', source))
    for path in sorted(GUIDES.glob("*.md")):
        files = files_of(path.read_text(encoding="utf-8"))
        # A program from outside of the tree has rules of its own.
        is_outside = path.stem in {"loop", "plugin"}
        own = ["--isolated"] if is_outside else ["--extend-ignore", "INP001"]

        assert files
        assert path.stem in followed
        for name, text in files.items():
            if not name.endswith(".py"):
                continue
            for command in (
                # Its package is made by the guide.
                ["check", "--no-cache", *own],
                ["format", "--no-cache", "--check"],
            ):
                done = subprocess.run(
                    [ruff, *command, "--stdin-filename", name, "-"],
                    input=text,
                    capture_output=True,
                    text=True,
                    check=False,
                    cwd=ROOT,
                )
                assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"


_WITHOUT_NOISE = """
import sys
from harness.cli.main import main
from harness.run import rounds
rounds.MIN_TURN_SEC = 0.05
overrides = {"canary": lambda core: 0.2, "void_reason": lambda load, retraces: ""}
sys.exit(main(sys.argv[1:], run_overrides=overrides))
"""


def test_the_tutorial_begins_with_somebodys_program(tmp_path):
    """The file and the commands before the first workload, in an empty folder."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    text = text[: text.index("## 3.")]
    apply(text, tmp_path)
    sweep, verify, gate = commands_of(text)

    shown = python(tmp_path, ["-c", _WITHOUT_NOISE, *sweep[2:], "--repeats=2"])
    assert "train.py" in shown
    assert "are as recomputed" in python(tmp_path, verify)
    page = (tmp_path / "runs" / "mine" / "report" / "index.html").read_text()
    assert "grade B of A to D" in page
    assert "is not in a git repository" in python(tmp_path, gate, code=2)


def test_a_loop_of_ones_own_takes_part(tmp_path, monkeypatch):
    """Five lines, in an empty folder: it runs alone, and in a relay; N matches one."""
    guide = (GUIDES / "loop.md").read_text(encoding="utf-8")
    (diff,) = diffs_of(guide)
    copy, sweep = commands_of(guide)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(
        "PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )

    apply(guide, tmp_path)
    python(tmp_path, copy)
    assert 5 == len(re.findall(r"^\+(?!\+)", diff, re.MULTILINE))
    alone = python(tmp_path, ["train.py", "2", "64", "0"])
    assert re.search(r"scaling_client: [\d.e+]+ examples/s \[.+\], 97 steps", alone)
    words = [*sweep[2:], "--repeats=1", "--rounds=2", "--study=new"]
    python(tmp_path, ["-c", _WITHOUT_NOISE, *words])
    store = Store.open(tmp_path / "runs" / "new")
    trials = frame.trials_frame(store)
    assert {"ok"} == set(trials.status)
    assert {"none", "twin"} == set(trials.control)
    (match,) = load_study(store).matches
    assert 1e-9 > match.loss_difference


def test_a_package_of_plugins_is_installed(tmp_path, monkeypatch):
    """By pip, in an empty folder: it is listed, planned, reported and verified."""
    guide = (GUIDES / "plugin.md").read_text(encoding="utf-8")
    plan, install, listing = commands_of(guide)
    sources, site = tmp_path / "sources", tmp_path / "site"
    apply(guide, sources)
    lines = files_of(guide)["bench.py"].splitlines()
    assert 15 >= sum(1 for line in lines if line)

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    planned = python(sources, plan)
    assert re.search(r"in_graph x2 strong, .*runs/mine-own-", planned, re.DOTALL)
    python(sources, [*install, "--no-index", "--target", str(site)])
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{site}")
    there = tmp_path / "there"
    there.mkdir()
    listed = python(there, listing)
    for kind in ("workload", "metric", "section", "format"):
        assert f"({kind} of bench-of-mine 0.1, bench" in listed
    named = ["mine" if word == "bench:WORKLOAD" else word for word in plan]
    (of,) = json.loads(python(there, [*named, "--json"]))["plugins"].values()
    assert ("bench:WORKLOAD", "bench-of-mine 0.1") == (of["object"], of["package"])

    study = there / "runs" / "s"
    shutil.copytree(published_studies.study("sngan"), study)
    of_gate, as_cases, _, verified = harness(
        there,
        ("gate", "--help"),
        ("report", "s", "--format", "cases"),
        ("report", "s"),
        ("verify", "s"),
    )
    assert "slowest_step_sec (plugins)" in of_gate
    assert "in_graph x" in as_cases
    page = (study / "report" / "index.html").read_text()
    assert "<p>Slowest step: " in page
    assert "Figures of bench-of-mine 0.1" in page
    assert "section 'slowest' of bench-of-mine 0.1: what a plugin shows" in verified
