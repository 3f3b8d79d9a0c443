"""Gates on time, counts and quality, of revisions or studies: the exit code judges.

One that is killed leaves a worktree and folders, which the next one removes.
"""

import fcntl
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

import covering
import pytest
from command_lines import DRIVER, GATE, WORKER, git, worktrees
from study_files import processes_of

from harness import ExitCode
from results import Control, Store
from results.judging import read_gate

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
FIXED = ("--repeats=5", "--alpha=45%", "--measure-equal", "--backends=in_graph")


def counts_of(suite):
    return tuple(suite.get(name) for name in ("failures", "errors", "skipped"))


def written_at():
    found = Path("runs").rglob("status.json")
    return {path: path.stat().st_mtime_ns for path in found}


def test_two_equal_revisions_pass(gate, harness, repository, tmp_path, stored):
    statuses = written_at()
    code, out, err = gate("--baseline=same", f"--study={stored}")

    assert ExitCode.OK == code, err
    assert 15 == len(statuses)
    assert statuses == written_at()
    assert re.search(
        r"(PASS|IMPROVE): throughput against revision same \(\w{12}\)", out
    )
    trials = Store.open(tmp_path / "runs" / stored).read_plan().trials
    commit = git(repository, "rev-parse", "same")[:12]
    first = [trial.spec for trial in trials if trial.spec.repetition_index == 0]
    assert {("", Control.NONE), ("", Control.AA), (commit, Control.NONE)} == {
        (spec.revision, spec.control) for spec in first
    }
    resumed, _, err = harness("sweep", "--study", stored)
    assert ExitCode.USAGE == resumed
    assert re.search(r"compares this tree with revision '\w+'.* repeat the gate", err)


@pytest.mark.parametrize(
    ("reasons", "options", "stopped", "message"),
    [
        (
            *(["", "noise", "noise"], (), ""),
            r"^UNFIT: .* blocks are discarded \(noise\), more",
        ),
        # Then it stops after its first repetition.
        (
            ["noise"],
            ("--measure-equal", "--set=rounds=1"),
            "stopped: no block of run 1 counts",
            r"^UNFIT: .* because (\d+) of \1 blocks are discarded",
        ),
    ],
)
def test_a_disturbed_machine_gives_no_verdict(gate, reasons, options, stopped, message):
    found = itertools.cycle(reasons)
    words = ("--baseline=same", "--repeats=2", *options)
    code, out, err = gate(*words, discard_reason=lambda *_: next(found))

    assert ExitCode.UNFIT == code, err
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

    assert (ExitCode.INTERRUPTED, "") == (process.returncode, out)
    assert re.search(r"resume with: python -m harness gate .*--baseline=same", err)
    assert [] == worktrees(repository)
    assert [] == list(temporary.iterdir())
    assert list(tmp_path.glob("runs/*/trials/*"))
    assert [] == processes_of(tmp_path)


def test_a_baseline_whose_trials_fail_is_no_verdict(gate):
    code, out, err = gate("--baseline=fails", "--repeats=2")

    assert ExitCode.SOME_TRIALS_FAILED == code
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


def test_an_efficiency_needs_blocks(gate):
    words = (*EFFICIENCY, "--replicas=1,2", "--order=sequential")
    code, _, err = gate(*words, of=GATE)

    assert ExitCode.USAGE == code
    assert re.search(r"efficiency needs cases that take .*; leave --order", err)


LOOKING = (*(word for word in GATE if word not in FIXED), "--set=rounds=3")
LOOKING += ("--no-match",)


def test_equal_code_passes_at_once(gate, written):
    code, out, err = gate("--baseline=same", of=LOOKING)
    _, junit, _ = gate("--baseline=same", "--format=junit", of=LOOKING)

    assert ExitCode.OK == code, err
    assert "PASS: throughput against revision same (" in out
    assert "nothing was measured, since the code of both sides is the same" in out
    assert ("0", "0", "0") == counts_of(ET.fromstring(junit))
    assert ["temporary"] == written()


def test_a_clear_slowdown_ends_at_the_first_look(gate, repository, temporary, tmp_path):
    code, out, err = gate(
        "--baseline=faster", "--measure-equal", "--study=g", "--format=json", of=LOOKING
    )

    data = json.loads(out)
    assert (ExitCode.REGRESSION, "regress") == (code, data["verdict"]), err
    (case,) = data["cases"]
    assert pytest.approx(0.10, abs=0.02) == case["slowdown"]
    assert 4 == case["n"]
    assert any("looked after 4 runs" in note for note in data["notes"])
    assert [] == worktrees(repository)
    assert [] == list(temporary.iterdir())
    assert data == json.loads((tmp_path / "runs" / "g" / "gate.json").read_text())
    store = Store.open(tmp_path / "runs" / "g")
    plan = store.read_plan()
    assert {"in_graph"} == {trial.spec.backend for trial in plan.trials}
    results = [trial.result for trial in store.trials() if trial.result is not None]
    first = [of for of in results if any(block.is_sustained for block in of.blocks)]
    assert 8 == len(first)  # not the A/A controls
    assert {4} == {sum(block.is_sustained for block in of.blocks) for of in first}
    notes = read_gate(store).notes
    (check,) = (note for note in notes if note.startswith("a check of the blocks:"))
    assert re.search(r"take [+-]?\d+\.\d\s% \[.+\] longer \(n = 4\), over all", check)


def test_a_stored_study_is_judged_as_weaker(gate, stored):
    code, out, err = gate(f"--baseline={stored}", "--study=new", "--set=seed=1")

    assert ExitCode.INCONCLUSIVE == code, err
    assert "\na weaker comparison: the two were not" in out
    verdict = r"\nADVICE, NO VERDICT: (PASS|IMPROVE): throughput against study stored"
    assert re.search(verdict, out)


def test_another_machine_is_refused_before_anything_is_measured(gate, stored):
    for path in Path("runs", stored, "trials").glob("*/env.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"fingerprint": "00" * 10}))
    code, out, err = gate("--baseline=stored", "--study=new")
    shown = gate("--baseline=stored", "--study=new", "--allow-different", "--repeats=2")

    assert (ExitCode.USAGE, "") == (code, out)
    assert re.search(
        r"'this tree' and 'study stored' are not comparable: machine fingerprint:"
        r" \w{20} / 0{20}; measure both",
        err,
    )
    assert ExitCode.INCONCLUSIVE == shown[0], shown[2]
    assert (
        "not comparable, shown only and never a pass: machine fingerprint" in shown[1]
    )
    assert "INCONCLUSIVE: throughput against study stored" in shown[1]


AS_LONG_AS_NEEDED = tuple(of for of in GATE if not of.startswith("--repeats"))
OF = ("--repeats=2", "--set=rounds=1", "--baseline=sent_less")


@pytest.mark.usefixtures("with_pages")
def test_three_percent_more_bytes_are_shown_before_the_first_block(gate):
    files = ("--write=junit=gate.xml", "--write=json=gate.json")
    code, out, err = gate(*OF, "--study=g", *files)

    assert ExitCode.INCONCLUSIVE == code, err
    line = "counted in a step: in_graph x1: collective bytes +3.0 % (exact: 1000 to"
    assert err.index(line) < err.index("checking and recording")
    assert 1 == err.count("counted in a step")
    assert re.search(
        r"x1, weak: collective bytes +\+3.0 %, exact: 1000 to 1030 +2 +rose", out
    )
    assert "equal on both sides in each case: graph nodes" not in out
    assert "and equal on both sides: graph nodes (n = 2 runs of a side or more)" in out
    assert "not judged; --count collective_bytes: a rise is a regression" in out
    assert "1 rose (slower by 5.0% matters" in out
    suite = ET.parse("gate.xml").getroot()
    (case,) = suite.findall("testcase[system-out]")
    assert "0" == suite.get("failures")
    assert "in_graph x1, weak: collective bytes" == case.get("name")
    assert "rose: +3.0 %, exact: 1000 to 1030, n 2" in case.findtext("system-out", "")
    for name in ("gate.json", "runs/g/gate.json"):
        kept = json.loads(Path(name).read_text())["cases"][-1]
        assert ("rose", 1000, 1030) == (kept["verdict"], kept["before"], kept["after"])
    page = Path("runs/g/report/index.html").read_text()
    assert "collective bytes rose from 1000 to 1030, exactly (not judged)." in page
    assert "+3.0 %, exact: 1000 to 1030" in page
    assert "Graph nodes" in page
    assert '<td class="n">1\N{NARROW NO-BREAK SPACE}030</td>' in page  # every digit

    # It was measured, and is only judged again: by itself, since no step takes longer.
    names = ("--count=collective_bytes", "--count=graph_nodes")
    code, out, err = gate(*OF, "--study=g", *names)
    assert ExitCode.REGRESSION == code, err
    assert "REGRESS: throughput, graph nodes, collective bytes against revision" in out
    assert re.search(r"collective bytes +\+3.0 %, exact: 1000 to 1030 +2 +regress", out)
    assert re.search(r"graph nodes +exact: 100 +2 +pass", out)
    assert "1 regress" in out
    assert "counted in a step" not in err


def test_what_was_named_fails_on_a_busy_machine_too(gate):
    asked = ("--count=collective_bytes", "--write=junit=gate.xml", "--format=github")
    code, out, err = gate(*OF, *asked, discard_reason=lambda *_: "noise")

    assert ExitCode.REGRESSION == code, err
    assert "counted in a step: in_graph x1: collective bytes +3.0 %" in err
    assert "collective bytes: regress: +3.0 %25, exact: 1000 to 1030, n 1" in out
    last = out.splitlines()[-1]
    assert last.startswith("::error ")
    assert "REGRESS: throughput, collective bytes against revision" in last
    assert "1 no verdict, 1 regress" in last
    assert re.search(
        r"; the machine gave no verdict: (\d+) of \1 blocks are discarded", last
    )
    suite = ET.parse("gate.xml").getroot()
    assert ("2", "0", "1") == counts_of(suite)


def test_a_gate_ends_with_the_repetition_in_which_a_count_rose(gate):
    """In processes that import what is checked out, as users have them."""
    arguments = ("--baseline=sent_less", "--set=rounds=1", "--count=collective_bytes")
    for is_first in (True, False):
        words = (*arguments, "--study=g")
        code, out, err = gate(*words, of=AS_LONG_AS_NEEDED, worker_command=WORKER)

        assert ExitCode.REGRESSION == code, err
        assert "stopped: a count rose, which makes it a regression" in err
        assert is_first == ("counted in a step" in err)
        assert re.search(r"collective bytes +\+3.0 %, exact: 1000 to 1030 +1 +reg", out)
    assert {0} == {
        json.loads(path.read_text())["repetition_index"]
        for path in Path("runs/g/trials").glob("*/spec.json")
    }


OF_QUALITY = (
    *("gate", "--metric=top_1", "--workload=resnet50", "--preset=smoke"),
    *("--backends=in_graph", "--replicas=1", "--mode=weak", "--budget=20steps"),
)


def test_a_change_that_learns_less_is_a_regression(gate, tmp_path):
    asked = ("--measure-equal", "--set=quality-repeats=5", "--study=q", "--format=json")
    code, out, err = gate("--baseline=learned_more", *asked, of=OF_QUALITY)
    assert out, err
    data = json.loads(out)
    (case,) = data["cases"]
    specs = [trial.spec for trial in Store.open(tmp_path / "runs/q").read_plan().trials]

    assert ExitCode.REGRESSION == code, err
    assert pytest.approx(0.2) == case["slowdown"]
    assert 5 == case["n"]
    assert all(spec.budget is not None for spec in specs)
    assert 5 == len({spec.seed for spec in specs})
    assert 10 == len(specs)


def test_a_stored_sweep_is_a_baseline_too(gate, tmp_path):
    sweep = ("sweep", *OF_QUALITY[2:], "--repeats=1", "--set=rounds=1")
    gate(of=(*sweep, "--study=stored", "--set=quality-repeats=5"))
    gate("--budget=none", of=(*sweep, "--study=none"))
    code, out, err = gate("--baseline=stored", "--set=quality-repeats=5", of=OF_QUALITY)
    refused, _, message = gate("--baseline=none", of=OF_QUALITY)
    (study,) = (tmp_path / "runs").glob("gate-quality-*")

    assert ExitCode.OK == code, err
    assert re.search(r"in_graph x1, weak +0\.0\s% \[\S+\s\S+\] +5 +pass", out)
    assert re.search(r"PASS: top_1 against study stored", out)
    assert "the median over seeds (n) of how much worse quality runs end" in out
    assert "the runs of the two studies do not share their seeds" in out
    assert 5 == len(Store.open(study).read_plan().trials)
    assert ExitCode.USAGE == refused
    assert "study 'none' has no quality run; run its sweep with --budget" in message


# Of a gate on time, and after the empty line of one on quality.
REFUSED = r"""
 -> a gate needs a baseline: give --baseline
--baseline=nothing -> 'nothing' is neither a study nor a
--baseline=older -> revision 'older' cannot run the trials of this tree
--baseline=of_older_records -> this tree: its records have schema version 1, here it is
--baseline=same --repeats=1 -> --repeats 1 gives no verdict
--baseline=same --metric=efficiency --replicas=1 -> has no baseline to scale from; give
--baseline=same --metric=time_to_first_step --order=interleaved -> first_step: the proc
--baseline=same --write=gate.xml -> 'gate.xml' is not FORMAT=FILE; use one of text,
--baseline=same --alpha=50% -> alpha is 0.5, must be .* less than 0.5
--baseline=same --count=nodes -> --count 'nodes' is not counted in a step; use one of gr
--baseline=same --count=retraces=([0-9]+) -> has a pattern, and a workload prints nothi
--baseline=same --count=collectives --backends=tf_mirrored -> of backend 'tf_mirrored';
--baseline=same --count=retraces --steps=1+ -> the first step traces, so another one is

--baseline=same --repeats=4 -> --repeats 4 has no effect with --metric top_1: .*set qual
--baseline=same --order=interleaved -> interleaved has no effect with --metric top_1:
--baseline=same --time-budget=3min -> --time-budget 3 has no effect with order seq
--baseline=same --metric=throughput -> --budget 20steps has no effect with --metric thr
--baseline=same --metric=joy -> unknown metric 'joy'; allowed are throughput, .*top_1
"""
ROWS = [
    (of, *row.split(" -> "))
    for of, table in zip((GATE, OF_QUALITY), REFUSED.split("\n\n"), strict=True)
    for row in table.strip("\n").splitlines()
]


@pytest.mark.parametrize(("of", "words", "message"), ROWS)
def test_a_gate_that_cannot_be_run_is_one_line(
    gate, written, repository, of, words, message
):
    code, out, err = gate(*words.split(), of=of)

    assert (ExitCode.USAGE, "") == (code, out)
    assert re.search(f"^error: .*{message}", err, re.MULTILINE), err
    assert ["temporary"] == written()
    assert [] == worktrees(repository)


NUM_KILLS = int(os.environ.get("GATE_KILLS", "2"))
GATE_SEC = 4.0
"""About the time of a gate here, at whose moments it is killed."""
KILLED = (*GATE, "--set=rounds=3", "--baseline=same")


def test_kills_of_a_gate_leave_nothing_behind_the_next_one(
    gate, repository, tmp_path, temporary
):
    """SIGKILL at random moments; ``make faults`` kills a hundred."""
    chance = covering.chance("kills of gates")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    num_left = 0
    for kill in range(NUM_KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(repository), *KILLED],
            cwd=tmp_path,
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if kill == 0:  # at least one where a worktree is left
            deadline = time.monotonic() + 60
            while not list(temporary.glob("replicator-trial-*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        else:
            time.sleep(chance.uniform(0, GATE_SEC))
        process.kill()
        process.wait()
        num_left += bool(worktrees(repository))
        # What is left of it ends by itself, and lets go of its folders.
        deadline = time.monotonic() + 60
        while worktrees(repository) or list(temporary.iterdir()):
            assert time.monotonic() < deadline, list(temporary.iterdir())
            gate("--baseline=same", of=LOOKING)  # which ends before it measures
            time.sleep(0.05)

    assert num_left >= 1
    assert "" == git(repository, "worktree", "prune", "--dry-run", "--verbose")


def test_a_worktree_that_git_did_not_finish_is_removed(gate, repository, tmp_path):
    root = tmp_path / "replicator-gate-x" / "tree"
    git(repository, "worktree", "add", "--quiet", "--lock", "--detach", str(root))
    (root.parent / ".owner").touch()
    others = tmp_path / "others"
    git(repository, "worktree", "add", "--quiet", "--detach", str(others))
    try:
        gate("--baseline=same", of=LOOKING)

        assert [str(others)] == worktrees(repository)
        assert not root.parent.exists()
    finally:
        git(repository, "worktree", "remove", str(others))


@pytest.mark.usefixtures("finished")
def test_folders_that_somebody_holds_stay(temporary, succeed):
    """A sweep removes the others, even if it has nothing to measure."""
    foreign, own = temporary / "replicator-notes", temporary / "replicator-gate-x"
    for folder in (foreign, own):
        folder.mkdir()
    with (own / ".owner").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        succeed("sweep", "--study=s")
        assert own.is_dir()
        command = subprocess.Popen(["sleep", "60"], pass_fds=(held.fileno(),))
    succeed("sweep", "--study=s")
    assert own.is_dir()
    command.kill()
    command.wait()
    succeed("sweep", "--study=s")

    assert [foreign] == list(temporary.iterdir())


@pytest.mark.usefixtures("finished")
def test_a_folder_whose_maker_was_killed_before_it_was_held_is_removed(
    temporary, succeed
):
    new, old, full = (temporary / f"replicator-trial-{n}" for n in "abc")
    for folder in (new, old, full):
        folder.mkdir()
    (full / "file").touch()
    for folder in (old, full):
        os.utime(folder, (1, 1))
    succeed("sweep", "--study=s")

    assert {new, full} == set(temporary.iterdir())
