"""Studies, gates and variants of a program in a folder or repository."""

import contextlib
import html
import io
import json
import re
import subprocess
import sys

import fork_server
import psutil
import pytest
from command_lines import commit, git
from fake_machine import two_cores

import reports
from harness import ExitCode, main
from results import Store

pytestmark = pytest.mark.processes

# Its rate is that of a machine whose noise between processes is 0.5 %.
BENCH = """
import random, sys, time
COST = 100
replicas, batch, seed = map(int, sys.argv[1:4])
machine = random.Random(f"{seed}{COST}{__file__}{replicas}").gauss(1.0, 0.005)
rank = random.Random(seed)
for step in range(8):
    print("cells/s:", 1e5 * replicas**0.9 / COST * machine * rank.gauss(1, 0.01))
    sys.stdout.flush()
    time.sleep(0.02)
"""
OWN = (
    "--command=python3 src/bench.py {replicas} {per_replica_batch_size} {seed}",
    r"--metric=throughput=cells/s: ([0-9.]+)",
    "--unit=cells",
    "--per-replica-batch-size=8",
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with three commits: slow, as it was, and the same again."""
    root = tmp_path_factory.mktemp("own") / "repository"
    (root / "src").mkdir(parents=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    (root / "uv.lock").write_text("version = 1\n")
    for name, cost in (("fast", 100), ("slow", 110), ("same", 100)):
        (root / "src" / "bench.py").write_text(BENCH.replace("100", str(cost)))
        commit(root, name)
    return root


@pytest.fixture
def run(repository, monkeypatch, capsys, forked_trials):
    monkeypatch.chdir(repository)
    monkeypatch.setattr(reports, "write_report", lambda *_: None)

    def call(*arguments):
        code = main(arguments, run_overrides={"canary": lambda _core: 0.2})
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def study(repository):
    """A study of the program, with a page at its end only, and without TensorFlow."""
    options = ("--replicas=1,2", "--mode=weak", "--repeats=2", "--study=own")
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        fork_server.installed(),
        contextlib.redirect_stdout(printed),
    ):
        patch.chdir(repository)
        patch.setattr(reports, "write_report", lambda *_: None)
        for name in ("tensorflow", "keras", "tensorflow_datasets"):
            patch.setitem(sys.modules, name, None)
        canary = {"canary": lambda _core: 0.2}
        assert ExitCode.OK == main(("sweep", *OWN, *options), run_overrides=canary)
        assert ExitCode.OK == main(("report", "own"))
    assert "bench.py" in printed.getvalue()
    return "own"


def test_a_study_is_measured_verified_and_shown(run, repository, study):
    code, out, err = run("verify", study)

    assert ExitCode.OK == code, out + err
    assert "figures are as recomputed" in out
    report = (repository / "runs" / study / "report" / "index.html").read_text()
    first_screen = report[: report.index('id="steps"')]
    # It says a rate that its lines do not bear out, and not what they are of.
    assert "grade C of A to D" in first_screen
    assert "clock does not confirm the rates" in html.unescape(first_screen)
    assert "same backend" not in report
    assert "in_graph" not in report
    assert "TF-Replicator" not in report  # which ran nothing of it
    assert "replicator-harness (Apache-2.0); the program is at commit" in report
    assert "author = " not in report
    for words in (("status", study), ("list", "studies")):
        code, out, err = run(*words)
        assert (ExitCode.OK, True) == (code, bool(out)), err
    code, out, _ = run("report", study, "--format=json")
    (efficiency,) = {
        round(row["value"], 2)
        for row in json.loads(out)["figures"]
        if row["quantity"] == "efficiency"
        and row["kind"] == "estimate"
        and "is_baseline" not in row
    }
    assert 2**-0.1 == pytest.approx(efficiency, abs=0.03)


def test_a_study_is_resumed_with_the_same_program_only(run, repository, study):
    root = repository / "runs" / study
    (parts,) = json.loads((root / "plan.json").read_text())["program_code"].values()
    env = json.loads(next(root.glob("trials/*/env.json")).read_text())

    assert {"harness", "git commit", "uv.lock", "python", "packages"} == parts.keys()
    assert parts["git commit"] == env["machine_state"]["git_commit"]
    assert {} == env["packages"]
    new = repository / "src" / "new.py"
    new.write_text("x = 1\n")
    code, _, err = run("sweep", "--study", study)
    new.unlink()

    assert ExitCode.USAGE == code
    assert "was made with another program: uncommitted src/new.py 'none' / '" in err
    assert 1 == len(err.splitlines())
    lock = repository / "uv.lock"
    lock.write_text("version = 2\n")
    code, _, err = run("sweep", "--study", study)
    lock.write_text("version = 1\n")
    assert (ExitCode.USAGE, 1) == (code, len(err.splitlines()))
    assert re.search(
        r"another program: .*uv\.lock '\w{16}' / '\w{16}' \(and 1 more\)", err
    )
    assert ExitCode.OK == run("sweep", "--study", study)[0]


def test_a_command_that_fails_at_once_is_not_repeated(run, repository):
    code, _, err = run(
        *("sweep", *OWN[:1], *OWN[2:], "--metric=step_time=speed (.*)"),
        *("--replicas=1,2", "--mode=weak"),
    )
    (failed,) = (repository / "runs").glob("bench.py-*/trials/*/status.json")

    assert ExitCode.NOTHING_MEASURED == code, err
    assert (
        "no line that it printed matches"
        in json.loads(failed.read_text())["failure"]["reason"]
    )
    assert re.search(r"the other 5 trials are not started, .*: change the command", err)


def test_a_gate_judges_two_revisions_of_the_repository(run, repository):
    git(repository, "checkout", "--quiet", "slow")
    code, out, err = run(
        *("gate", *OWN, "--replicas=1", "--mode=weak", "--repeats=3"),
        *("--baseline=fast", "--setup=echo prepared > .prepared"),
    )
    git(repository, "checkout", "--quiet", "main")
    listed = git(repository, "worktree", "list")

    assert ExitCode.REGRESSION == code, out + err
    assert 2 == err.count("--setup in ")
    assert 1 == len(listed.splitlines())
    assert not (repository / ".prepared").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--baseline=nowhere",), r"is neither a study nor a revision of"),
        (
            ("--baseline=fast", "--setup=test -e new && exit 3"),
            "fails in this tree with code 1",
        ),
        (
            ("--baseline=slow", "--setup=grep -q 'COST = 100' src/bench.py"),
            "fails in revision 'slow' (it works on this tree) with code 1",
        ),
    ],
)
def test_a_gate_that_cannot_be_prepared_says_where(run, arguments, message):
    code, out, err = run("gate", *OWN, "--replicas=1", "--mode=weak", *arguments)

    assert (ExitCode.USAGE, "") == (code, out)
    assert message in err.splitlines()[-1]


def test_a_setup_that_does_not_end_is_ended(run, monkeypatch):
    communicate = subprocess.Popen.communicate

    def hurried(process, data=None, timeout=None):
        """An hour passes in half a second."""
        return communicate(process, data, 0.5 if timeout == 3600.0 else timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", hurried)
    code, _, err = run(
        *("gate", *OWN, "--replicas=1", "--mode=weak", "--baseline=fast"),
        "--setup=sleep 986 & wait",
    )

    assert ExitCode.USAGE == code
    assert "takes more than 3600 s in this tree, and was ended; give" in err
    assert not any(
        process.info["cmdline"] == ["sleep", "986"]
        for process in psutil.process_iter(["cmdline"])
    )


def test_a_gate_needs_a_commit(harness, tmp_path):
    gate = ("gate", *OWN, "--replicas=1", "--mode=weak", "--baseline=main")
    code, _, err = harness(*gate)
    assert ExitCode.USAGE == code
    assert "is not in a git repository, so it has no revisions" in err
    git(tmp_path, "init", "--quiet")
    code, _, err = harness(*gate)
    assert ExitCode.USAGE == code
    assert "has no commit yet; commit what" in err


TRAIN = """
import random, sys, time
from lib import model
replicas, seed = int(sys.argv[1]), sys.argv[2]
noise = random.Random(f"{replicas} {seed}")
for _ in range(7):
    time.sleep(0.02)
    print("epoch took", model.EPOCH / replicas * noise.gauss(1, 0.005), flush=True)
if replicas == model.FAILS:
    open("data.csv", "w").write("a,b")
    raise ValueError("no data")
"""
TRAIN_SWEEP = (
    *("sweep", "--command=python3 train.py {replicas} {seed}", "--study=s"),
    *("--metric=step_time=took ([0-9.]+)", "--replicas=1,2"),
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "model.py").write_text("EPOCH, FAILS = 1.0, 0\n")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@two_cores
@pytest.mark.usefixtures("forked_trials", "folder")
def test_the_time_of_an_epoch_is_no_step_time(succeed):
    out = succeed(
        *TRAIN_SWEEP, "--repeats=2", "--mode=weak", "--set=efficiency-target=50%"
    )

    assert "Not reliable" in out
    assert "An efficiency above 110\u202f% is not plausible. Usual reas" in out
    assert "The harness's clock contradicts the rates: with " in out
    succeed("verify", "s")


@pytest.mark.usefixtures("forked_trials")
def test_a_module_that_changes_makes_another_program(harness, folder):
    model = folder / "lib" / "model.py"
    model.write_text("EPOCH, FAILS = 1.0, 2\n")
    sweep = (*TRAIN_SWEEP, "--mode=strong", "--repeats=1")
    code, _, err = harness(*sweep)
    assert ExitCode.OK != code
    assert "its first error: 'ValueError: no data'" in err or "no data" in err
    assert (folder / "data.csv").exists()
    (folder / "weights.bin").write_bytes(b"0" * 10_000)
    _, _, err = harness(*sweep, "--retry=failed")
    assert "another program" not in err
    model.write_text("EPOCH, FAILS = 2.0, 0\n")
    code, _, err = harness(*sweep, "--retry=failed")

    assert ExitCode.USAGE == code
    assert re.search("with another program: file lib/model.py '", err)


@pytest.mark.parametrize(
    "place", ["among data", "elsewhere", "ignored", "submodule", "many modules"]
)
def test_an_imported_module_counts_wherever_it_is(
    succeed, folder, monkeypatch, tmp_path_factory, place
):
    model, script = folder / "lib" / "model.py", "train.py"
    if place == "among data":
        # At most 5,000 are looked at, level by level.
        for name, count in (("pictures", 4_990), ("lib/data/pictures", 15)):
            (folder / name).mkdir(parents=True)
            for number in range(count):
                (folder / name / f"{number}.png").touch()
    elif place == "elsewhere":
        root = tmp_path_factory.mktemp("own")
        git(root, "init", "--quiet")
        commit(root, "one")
        monkeypatch.chdir(root)
        script = str(folder / script)
    elif place == "many modules":
        for number in range(900):  # as many as a plan names
            (folder / "lib" / f"a{number}.py").touch()
    else:
        ignored = ("lib", "train.py") if place == "ignored" else ()
        (folder / ".gitignore").write_text("\n".join((*ignored, "runs")))
        for root in (folder / "lib", folder)[place == "ignored" :]:
            git(root, "init", "--quiet")
            commit(root, "one")
        model.write_text("EPOCH, FAILS = 1.5, 0\n")

    def identify():
        out = succeed(
            *("sweep", f"--command=python3 {script} {{replicas}}", "--replicas=1,2"),
            *("--metric=step_time=took ([0-9.]+)", "--mode=strong"),
            *("--dry-run", "--json"),
        )
        plan = json.loads(out)
        (digest,) = {trial["spec"]["code_digest"] for trial in plan["trials"]}
        return digest, plan["program_code"][""]

    before, parts_before = identify()
    assert (before, parts_before) == identify()
    model.write_text("EPOCH, FAILS = 2.0, 0\n")
    after, parts = identify()

    assert before != after
    assert 1 == sum(parts[name] != parts_before[name] for name in parts)


# A rate that is known before it is measured, so that a ratio is as well.
SOLVE = """
import sys
for _ in range(8):
    print("rate", 100 * int(sys.argv[1]) * {"fast": 2, "slow": 1}[sys.argv[2]])
"""
COMMAND = "--command=python3 solve.py {replicas} {kind}"
VARIANTS = (
    "sweep",
    COMMAND,
    "--metric=throughput=rate ([0-9.]+)",
    "--mode=strong",
    "--replicas=1",
    "--per-replica-batch-size=8",
    "--repeats=2",
    "--study=s",
)


@pytest.mark.usefixtures("forked_trials")
def test_variants_are_cases_of_one_study_with_their_ratio(succeed, tmp_path):
    (tmp_path / "solve.py").write_text(SOLVE)
    out = succeed(*VARIANTS, "--param=kind=fast,slow")

    assert "losses" not in out  # a program that prints numbers shows none
    store = Store.open(tmp_path / "runs" / "s")
    kinds = {trial.spec.options["kind"] for trial in store.read_plan().trials}
    assert {"fast", "slow"} == kinds
    summary = json.loads(succeed("report", "s", "--format=json"))
    ratios = [
        (row["backend"], row["other_backend"], round(row["value"], 6))
        for row in summary["figures"]
        if row["figure"] == "forest"
    ]
    assert {("kind=fast", "kind=slow", 2.0)} == set(ratios)
    succeed("verify", "s")
    succeed("sweep", "--study=s")


SECONDS = 0.6
WALL = (
    *("sweep", "--command=python3 solve.py {replicas}", "--metric=wall"),
    *("--unit=cells", "--mode=strong", "--replicas=1,2", "--study=s"),
    *("--per-replica-batch-size=8", "--repeats=2"),
)


@pytest.mark.usefixtures("forked_trials")
def test_a_command_that_prints_nothing_is_timed_as_a_whole(succeed, tmp_path):
    (tmp_path / "solve.py").write_text(
        f"import sys, time; time.sleep({SECONDS} / int(sys.argv[1]))"
    )
    out = succeed(*WALL)

    assert "of A to D: whole commands, timed by the harness" in out
    store = Store.open(tmp_path / "runs" / "s")
    for planned in store.read_plan().trials:
        (rank,) = store.read_trial(planned.trial_id).result.ranks
        (step,) = rank.step_time_sec
        assert SECONDS / planned.spec.num_replicas < step
        assert () == rank.warmup_step_time_sec
        assert round(step * 1e9) == rank.window_end_ns - rank.window_start_ns
    succeed("verify", "s")
