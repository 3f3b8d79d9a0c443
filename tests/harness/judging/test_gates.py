"""A gate of revisions or of stored studies: its exit code is the verdict."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from gate_process import DRIVER, GATE, worktrees

from harness.cli import exit_codes
from harness.judging import revisions
from harness.trial import process_tree
from results.judging import gate as gate_module
from results.records.models import Control
from results.store.study_store import Store

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
FIXED = ("--repeats=5", "--alpha=45%", "--measure-equal", "--backends=in_graph")


def written_at():
    found = Path("runs").rglob("status.json")
    return {path: path.stat().st_mtime_ns for path in found}


def test_two_equal_revisions_pass(gate, harness, tmp_path, stored):
    """The same command resumes; 'sweep --study' has not the sources of the revision."""
    statuses = written_at()
    code, out, err = gate("--baseline=same", f"--study={stored}")

    assert exit_codes.OK == code, err
    assert 15 == len(statuses)
    assert statuses == written_at()
    assert re.search(
        r"(PASS|IMPROVE): throughput against revision same \(\w{12}\)", out
    )
    trials = Store.open(tmp_path / "runs" / stored).read_plan().trials
    commit = revisions.find_commit("same")[: revisions.SHOWN_DIGITS]
    first = [trial.spec for trial in trials if trial.spec.repetition_index == 0]
    assert {("", Control.NONE), ("", Control.TWIN), (commit, Control.NONE)} == {
        (spec.revision, spec.control) for spec in first
    }
    resumed, _, err = harness("sweep", "--study", stored)
    assert exit_codes.USAGE == resumed
    assert re.search(r"compares this tree with revision '\w+'.* repeat the gate", err)


@pytest.mark.full
def test_a_baseline_that_is_slower_shows_an_improvement(gate):
    code, out, err = gate("--baseline=slower", "--delta=50%")

    assert exit_codes.OK == code, (out, err)
    assert re.search(r"in_graph x1, weak +-(8|9)\.\d %", out)


@pytest.mark.parametrize(
    ("reasons", "options", "stopped", "message"),
    [
        (
            ["", "noise", "noise"],
            (),
            "",
            r"^UNFIT: .* blocks are discarded \(noise\), more",
        ),
        # Then it stops after its first generation.
        (
            ["noise"],
            ("--measure-equal", "--rounds=1"),
            "stopped: no block of run 1 counts",
            r"^UNFIT: .* because (\d+) of \1 blocks are discarded",
        ),
    ],
)
def test_a_disturbed_machine_gives_no_verdict(gate, reasons, options, stopped, message):
    found = itertools.cycle(reasons)
    code, out, err = gate(
        *("--baseline=same", "--repeats=2", *options),
        void_reason=lambda _load, _retraces: next(found),
    )

    assert exit_codes.UNFIT == code, err
    assert stopped in err
    assert re.search(message, out, re.MULTILINE)


def test_an_interrupt_removes_the_worktree(repository, tmp_path, temporary):
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(repository), *GATE, "--baseline=same"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not list(tmp_path.glob("runs/*/trials/*/rank_0.jsonl")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        assert 1 == len(worktrees(repository))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()

    assert (exit_codes.INTERRUPTED, "") == (process.returncode, out)
    assert re.search(r"resume with: python -m harness gate .*--baseline=same", err)
    assert [] == worktrees(repository)
    assert [] == list(temporary.iterdir())
    trials = [str(path) for path in tmp_path.glob("runs/*/trials/*")]
    assert trials
    assert not [trial for trial in trials if process_tree.find_tree(trial)]


def test_a_baseline_whose_trials_fail_is_no_verdict(gate):
    """It stops after the first generation: its other side alone says nothing."""
    code, out, err = gate("--baseline=fails", "--repeats=2")

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert re.search(
        r"stopped: all trials of revision \w+ in run 1 failed, so nothing can be"
        r" compared; see why above, and run the same command with --retry failed",
        err,
    )
    trials = [json.loads(p.read_text()) for p in Path("runs").rglob("status.json")]
    assert ["failed", "ok", "ok"] == sorted(trial["status"] for trial in trials)
    assert re.search(
        r"failed: in_graph x1 of \w+, repetition 0: failed: could not", out
    )


EFFICIENCY = ("--baseline=same", "--metric=efficiency")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), r"a gate needs a baseline: give --baseline"),
        (("--baseline=",), r"a gate needs a baseline: give --baseline"),
        (("--baseline=nothing",), r"'nothing' is neither a study nor a"),
        (("--baseline=--help",), r"'--help' is neither a study nor a"),
        # What makes an environment that is not used; "test_other_lock.py" has both.
        pytest.param(
            ("--baseline=broken",),
            r"revision 'broken' cannot be installed: .*require",
            marks=pytest.mark.full,
        ),
        (("--baseline=older",), r"revision 'older' cannot run the trials of this tree"),
        (
            ("--baseline=of_older_records",),
            r"this tree: its records have schema version 1, here it is \d+; the two",
        ),
        (("--baseline=same", "--repeats=1"), r"--repeats 1 gives no verdict"),
        (
            (*EFFICIENCY, "--replicas=1"),
            r"--replicas 1 has no baseline to scale from; give two numbers or more",
        ),
        (
            ("--baseline=same", "--metric=time_to_first_step", "--order=interleaved"),
            r"--order interleaved with --metric time_to_first_step: the proc",
        ),
        (
            ("--baseline=same", "--write=gate.xml"),
            r"'gate.xml' is not FORMAT=FILE; use one of text, junit, github,",
        ),
        (("--baseline=same", "--write=pdf=a.pdf"), r"'pdf=a.pdf' is not FORMAT=FILE"),
        (("--baseline=same", "--write=junit="), r"'junit=' is not FORMAT=FILE"),
        (
            ("--baseline=same", "--write=junit=no/gate.xml"),
            r"'no/gate.xml' cannot be a file, since its folder does",
        ),
        (
            ("--baseline=same", "--write=junit=."),
            r"'.' cannot be a file, since it is a folder; choose another",
        ),
        (("--baseline=same", "--delta=0%"), r"--delta: '0%' is not a percentage"),
        (("--baseline=same", "--alpha=50%"), r"alpha is 0.5, must be .* less than 0.5"),
    ],
)
def test_a_gate_that_cannot_be_run_is_one_line(
    gate, written, repository, arguments, message
):
    code, out, err = gate(*arguments)

    assert exit_codes.USAGE == code
    assert re.search(f"^error: .*{message}", err, re.MULTILINE), err
    assert not out
    assert ["temporary"] == written()
    assert [] == worktrees(repository)


def test_an_efficiency_needs_turns(gate):
    words = (*EFFICIENCY, "--replicas=1,2", "--order=sequential")
    code, _, err = gate(*words, of=GATE)

    assert exit_codes.USAGE == code
    assert re.search(r"efficiency needs cases that take .*; leave --order", err)


def test_a_revision_is_checked_with_its_own_sources(gate, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, _, err = gate("--baseline=older", f"--runs-dir={tmp_path}")

    assert exit_codes.USAGE == code
    assert "revision 'older' cannot run the trials of this tree" in err


LOOKING = (*(word for word in GATE if word not in FIXED), "--rounds=3", "--no-match")


def test_equal_code_passes_at_once(gate, written):
    code, out, err = gate("--baseline=same", of=LOOKING)
    _, junit, _ = gate("--baseline=same", "--format=junit", of=LOOKING)

    assert exit_codes.OK == code, err
    assert "PASS: throughput against revision same (" in out
    assert "nothing was measured, since the code of both sides is the same" in out
    suite = ET.fromstring(junit)  # our own
    assert ("0", "0", "0") == tuple(
        suite.get(name) for name in ("failures", "errors", "skipped")
    )
    assert ["temporary"] == written()


def test_a_clear_slowdown_ends_at_the_first_look(gate, repository, temporary, tmp_path):
    code, out, err = gate(
        "--baseline=faster", "--measure-equal", "--study=g", "--format=json", of=LOOKING
    )

    data = json.loads(out)
    assert (exit_codes.REGRESSION, "regress") == (code, data["verdict"]), err
    (case,) = data["cases"]
    assert pytest.approx(1.10, abs=0.02) == case["slowdown"]["value"]
    assert 4 == case["slowdown"]["n"]
    assert 4 == data["looks"]["decided_after"] == data["looks"]["num_generations"]
    assert [] == worktrees(repository)
    assert [] == list(temporary.iterdir())
    kept = json.loads((tmp_path / "runs" / "g" / "gate.json").read_text())
    assert ("regress", exit_codes.REGRESSION) == (kept["verdict"], kept["exit_code"])
    store = Store.open(tmp_path / "runs" / "g")
    plan = store.read_plan()
    assert {"in_graph"} == {trial.spec.backend for trial in plan.trials}
    results = [trial.result for trial in store.trials() if trial.result is not None]
    first = [of for of in results if any(turn.is_sustained for turn in of.turns)]
    assert 8 == len(first)  # not the twins
    assert {4} == {sum(turn.is_sustained for turn in of.turns) for of in first}
    notes = gate_module.read_gate(store).notes
    (check,) = (note for note in notes if note.startswith("a check of the blocks:"))
    assert re.search(r"take [+-]\d+\.\d % \[.+\] longer \(n = 4\), over all", check)


def test_a_stored_study_is_judged_as_weaker(gate, stored):
    code, out, err = gate(f"--baseline={stored}", "--study=new", "--seed=1")

    assert exit_codes.INCONCLUSIVE == code, err
    assert re.search(r"^a weaker comparison: the two were not", out, re.MULTILINE)
    assert re.search(
        r"^ADVICE, NO VERDICT: (PASS|IMPROVE): throughput against study stored",
        out,
        re.MULTILINE,
    )


def test_another_machine_is_refused_before_anything_is_measured(gate, stored):
    for path in Path("runs", stored, "trials").glob("*/env.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"fingerprint": "00" * 10}))
    code, out, err = gate("--baseline=stored", "--study=new")
    shown = gate("--baseline=stored", "--study=new", "--allow-different", "--repeats=2")

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.search(
        r"'this tree' and 'study stored' are not comparable: machine fingerprint:"
        r" \w{20} / 0{20}; measure both",
        err,
    )
    assert exit_codes.INCONCLUSIVE == shown[0], shown[2]
    assert (
        "not comparable, shown only and never a pass: machine fingerprint" in shown[1]
    )
    assert "INCONCLUSIVE: throughput against study stored" in shown[1]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--steps=5+", r"num_warmup_steps: 5 / \d"),
        ("--allocator=default", r"allocator: default / keep"),
        ("--replicas=2", r"no case is in both 'this tree' .* and 'stored'"),
        # Nothing of a machine cancels that both sides had at other times.
        (
            "--metric=efficiency",
            r"^error: efficiency against .* cannot be judged: .* with a revision of gi",
        ),
    ],
)
def test_another_setting_is_refused(gate, stored, option, message):
    replicas = ["--replicas=1,2"] * ("efficiency" in option)
    code, out, err = gate(f"--baseline={stored}", "--study=new", option, *replicas)

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.search(message, err), err
    assert not Path("runs", "new").exists()
