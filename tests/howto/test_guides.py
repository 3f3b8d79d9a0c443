"""Whoever does exactly what a how-to guide says has added what it is about.

The blocks of a guide with a title are files, its diffs are changes: both are applied to
a copy of the project. Then the guide's own tests and commands run there.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import covering
import pytest

from results import Store, trials_frame

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "howto"
TIMEOUT_SEC = 240
FOLLOWED = ("backend", "collective", "workload", "metric", "section", "launcher")
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
from harness.cli import running
from harness import main
running._renew_report = lambda store: ""  # one page at the end is enough
overrides = {"canary": lambda core: 0.2, "discard_reason": lambda load, retraces: ""}
overrides["min_block_sec"] = 0.05
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words, run_overrides=overrides)
    answers.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""


def harness(tree, *lines, code=0, extra=""):
    """Runs command lines in one process, on a machine without noise."""
    said = python(tree, ["-c", extra + _SEVERAL, json.dumps(lines)])
    answers = json.loads(said.splitlines()[-1])
    assert {code} >= {answer[0] for answer in answers} or code is None, answers
    return [err if code else out for _, out, err in answers]


def guide_of(name):
    return (GUIDES / f"{name}.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Returns a copy of the project in which all guides of the tree were followed."""
    made = tmp_path_factory.mktemp("followed") / "project"
    ignored = shutil.ignore_patterns(*NOT_COPIED)
    shutil.copytree(ROOT, made, ignore=ignored, symlinks=True)
    for name in FOLLOWED:
        apply(guide_of(name), made)
    return made


# In one process, which imports TensorFlow once: the tests that the guides add or name,
# and of long ones a few. The full run has their commands as they stand there.
TESTED = {
    "backend": ("tests/conformance", "tf_one_device and (reads or misuse or lacks)"),
    "collective": ("tests/replicator/collectives/test_shift.py", "test_shift"),
    "conformance": (
        "tests/conformance",
        "shifted_values and (single_1 or in_graph_2 or tf_mirrored_2)",
    ),
    "grammar": ("tests/fuzz", "test_the_grammar"),
    "workload": ("tests/workloads/softmax", "test_softmax"),
    "metric": ("tests/results/figures/test_tail.py", "test_tail"),
    "launcher": ("tests/harness/launch/test_lsf.py", "test_lsf"),
    "section": ("tests/docs/test_links.py", "test_links and section"),
    "lists": (
        "tests/docs/test_inventories.py",
        "test_inventories and (backend or public or softmax)",
    ),
}


@pytest.fixture(scope="module")
def tested(tree):
    """Returns what the tests of the guides print."""
    paths = dict.fromkeys(path for path, _ in TESTED.values())
    chosen = " or ".join(f"({words})" for _, words in TESTED.values())
    return python(tree, ["-m", "pytest", "-q", "-rp", *paths, "-k", chosen])


@pytest.mark.parametrize("name", TESTED)
def test_the_tests_of_a_guide_pass(tested, name):
    assert f"PASSED {TESTED[name][0]}" in tested
    assert "failed" not in tested


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["backend", "collective", "workload", "metric", "section"]
)
def test_each_command_of_a_guide_runs(tree, name):
    """As it stands there, with TensorFlow."""
    for words in commands_of(guide_of(name)):
        study = (
            ["--study", name] if words[2:3] == ["harness"] and "sweep" in words else []
        )
        python(tree, [*words, *study])


def test_a_collective_touches_two_files_of_the_product():
    text = guide_of("collective")
    changed = {*files_of(text), *re.findall(r"^\+\+\+ b/(.+)$", text, re.MULTILINE)}
    product = {path for path in changed if path.startswith("replicator/")}

    assert 2 == len(product - {"replicator/README.md"})


# A metric is listed, judged by its own tolerance, and calculated.
OF_THE_METRIC = """
import numpy as np
from harness.cli.subcommands import gate_command
from workloads.resnet50.study import METRICS
rule = gate_command.make_rule(
    workload="resnet50", metric="reciprocal_rank", delta=None, alpha=0.05
)
assert 0.02 == rule.delta
logits = np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 1.0]])
assert [0.5, 1.0] == METRICS[-1].of(logits, np.array([2, 0])).tolist()
"""


def test_what_is_added_is_planned_listed_and_shown(tree, synthetic):
    """A backend, a workload, a metric, and a section, which is in its place."""
    backend = commands_of(guide_of("backend"))[0][2:]
    workload, metric = (commands_of(guide_of(n))[0][2:] for n in ("workload", "metric"))
    shape = synthetic.Shape(modes=(synthetic.WEAK,), repeats=2, num_measured_steps=3)
    synthetic.make_store(tree / "runs" / "made", shape)

    of_backend, of_workload, of_metric, of_gate, _ = harness(
        tree,
        backend,
        [*workload, "--dry-run"],
        [*metric, "--dry-run", "--json"],
        ["gate", "--help"],
        ["report", "made", "-o", "report.html"],
        extra=OF_THE_METRIC,
    )
    assert "tf_one_device" in of_backend
    assert re.search(r"\b2 trials", of_workload), of_workload
    named = {of["name"]: of for of in json.loads(of_metric)["metrics"]}
    facts = named["reciprocal_rank"]
    assert (True, 0.02) == (facts["is_higher_better"], facts["tolerance"])
    assert "reciprocal_rank (resnet50)" in " ".join(of_gate.split())
    page = (tree / "report.html").read_text(encoding="utf-8")
    ids = re.findall(r'<section [^>]*id="(\w+)"', page)
    assert ids.index("steps") + 1 == ids.index("slowest")
    assert "Slowest measured step" in page or "Slowest step" in page


@pytest.fixture
def lsf(tmp_path, monkeypatch):
    """A job of LSF on two hosts, with a stand-in of ``blaunch`` first on the path."""
    client = tmp_path / "lsf" / "blaunch"
    client.parent.mkdir()
    client.write_text('#!/bin/sh\nshift\nexec "$@"\n', encoding="utf-8")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LSB_MCPU_HOSTS", "localhost 1 127.0.0.1 1")


@pytest.mark.usefixtures("lsf")
def test_a_launcher_is_added(tree, monkeypatch):
    """It starts trials on two hosts, and records failures."""
    (words,) = commands_of(guide_of("launcher"))
    driver = str(tree / "tests" / "support" / "driver.py")
    sweep = [*(words if covering.is_full() else [driver, *words[2:]]), "--no-match"]

    def run(study, code):
        python(tree, [*sweep, "--study", study], code=code)
        (trial,) = (tree / "runs" / study / "trials").iterdir()
        names = ("spec.json", "status.json")
        return [json.loads((trial / name).read_text()) for name in names]

    spec, status = run("new", 0)
    assert "ok" == status["status"], status
    assert "2" == spec["variables"]["REPLICATOR_HARNESS_HOSTS"]
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:rank1_sigkill")
    if not covering.is_full():
        _, status = run("broken", 5)
        # Another process of this machine may have been short of memory meanwhile.
        is_counted = re.search(r"counted \d", status["failure"]["reason"])
        assert ("out_of_memory" if is_counted else "failed") == status["status"]
        assert "rank 1 was in phase " in status["failure"]["reason"]


REFUSED = {
    "--set=pod-template=a.yaml": "a.yaml has no effect with --launcher lsf",
    "--set=nodes=7": "this process has 2 hosts of LSF; submit the command with bsub",
}


@pytest.mark.usefixtures("lsf")
def test_no_option_of_an_added_launcher_is_ignored(tree):
    """Each is used, or refused; nothing is written."""
    (words,) = commands_of(guide_of("launcher"))
    plain = words[words.index("--workload") :]

    own = ("sweep", "--study=refused", "--launcher=lsf", *plain)
    lines = [(*own, option) for option in REFUSED]
    answers = harness(tree, *lines, code=2)
    for said, message in zip(answers, REFUSED.values(), strict=True):
        assert message in said
    assert not (tree / "runs" / "refused").exists()


def test_the_code_of_every_guide_passes_the_linter(tmp_path):
    """Whoever copies it can propose it; each guide is followed above or below."""
    assert {*FOLLOWED, "loop", "plugin"} == {path.stem for path in GUIDES.glob("*.md")}
    for name in (*FOLLOWED, "loop", "plugin"):
        folder = tmp_path / ("tree" if name in FOLLOWED else "outside")
        files = files_of(guide_of(name))
        assert files
        for path, text in files.items():
            if path.endswith(".py"):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "tree")
    # A program from outside of the tree has rules of its own, and a package of a guide
    # is made by the guide.
    for folder in (tmp_path / "outside", tmp_path / "tree"):
        own = ["--isolated"] if folder.name == "outside" else ["--extend-ignore=INP001"]
        python(folder, ["-m", "ruff", "check", "--no-cache", *own, "."])
        alone = own[: folder.name == "outside"]
        python(folder, ["-m", "ruff", "format", "--check", "--no-cache", *alone, "."])


def test_the_tutorial_begins_with_somebodys_program(tmp_path):
    """The file and the commands before the first workload, in an empty folder."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    text = text[: text.index("## 3.")]
    apply(text, tmp_path)
    sweep, verify, gate = (words[2:] for words in commands_of(text))

    shown, verified = harness(tmp_path, [*sweep, "--repeats=1", "--mode=weak"], verify)
    assert "train.py" in shown
    assert "are as recomputed" in verified
    page = (tmp_path / "runs" / "mine" / "report" / "index.html").read_text()
    assert "grade B of A to D" in page
    (refused,) = harness(tmp_path, gate, code=2)
    assert "is not in a git repository" in refused


def test_a_loop_of_ones_own_takes_part(tmp_path, monkeypatch):
    """Five lines, in an empty folder: it runs alone, and interleaved; N equal one."""
    guide = guide_of("loop")
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
    words = ["weak" if word == "weak,strong" else word for word in sweep[2:]]
    _, said = harness(
        tmp_path,
        [*words, "--repeats=1", "--set=rounds=2", "--study=new"],
        ("report", "new", "--format=json"),
    )
    store = Store.open(tmp_path / "runs" / "new")
    trials = trials_frame(store)
    assert {"ok"} == set(trials.status)
    assert {"none", "twin"} == set(trials.control)
    (match,) = json.loads(said)["matches"]
    assert "matches" == match["outcome"]


def test_a_package_of_plugins_is_installed(tmp_path, monkeypatch, synthetic):
    """By pip, in an empty folder: it is listed, planned, reported and verified."""
    guide = guide_of("plugin")
    plan, install, listing = commands_of(guide)
    sources, site = tmp_path / "sources", tmp_path / "site"
    apply(guide, sources)
    lines = files_of(guide)["bench.py"].splitlines()
    assert 15 >= sum(1 for line in lines if line)

    monkeypatch.setenv("PIP_NO_COMPILE", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (planned,) = harness(sources, plan[2:])
    assert re.search(r"in_graph x2 strong, .*runs/mine-own-", planned, re.DOTALL)
    python(sources, [*install, "--no-index", "--target", str(site)])
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{site}")
    shape = synthetic.Shape(modes=(synthetic.WEAK,), repeats=2, num_measured_steps=3)
    study = synthetic.make_store(tmp_path / "there" / "runs" / "s", shape).root
    named = ["mine" if word == "bench:WORKLOAD" else word for word in plan[2:]]
    listed, planned, of_gate, as_cases, _, verified = harness(
        tmp_path / "there",
        listing[2:],
        [*named, "--json"],
        ("gate", "--help"),
        ("report", "s", "--format", "cases"),
        ("report", "s"),
        ("verify", "s"),
        code=None,  # nobody measured it, so nothing is verified
    )
    for kind in ("workload", "metric", "section", "format"):
        assert f"({kind} of bench-of-mine 0.1, bench" in listed
    (of,) = json.loads(planned)["plugins"].values()
    assert ("bench:WORKLOAD", "bench-of-mine 0.1") == (of["object"], of["package"])
    assert "slowest_step_sec (plugins)" in of_gate
    assert "in_graph x" in as_cases
    page = (study / "report" / "index.html").read_text()
    assert "<p>Slowest step: " in page
    assert "Figures of bench-of-mine 0.1" in page
    assert "section 'slowest' of bench-of-mine 0.1: what a plugin shows" in verified
