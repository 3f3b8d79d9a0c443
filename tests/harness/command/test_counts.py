"""What a program counts: read beside its times, and compared exactly by a gate."""

import json
import os
import re

import pytest
from command_lines import commit, git

import reports
from harness import ExitCode, main
from harness.command.reader import CommandError, OutputReader, ReadingError
from results import Program, Store, trial_id

# Its rate is its own claim, and is the same on both sides but for 0.01 %.
BENCH = """
import random, sys
noise = random.Random(f"{sys.argv[1]} {SENT}")
for step in range(5):
    print("cells/s:", 1e5 * noise.gauss(1, 1e-4), flush=True)
    print("sent", SENT * int(sys.argv[2]), "bytes", file=sys.stderr)
"""
OWN = (
    "--command=python3 bench.py {seed} {replicas}",
    "--metric=throughput=cells/s: ([0-9.]+)",
    "--count=bytes=sent ([0-9]+) bytes",
    "--per-replica-batch-size=1",
    "--replicas=1,2",
    "--mode=weak",
    "--repeats=2",
)


@pytest.mark.processes
@pytest.mark.usefixtures("forked_trials")
def test_a_gate_finds_five_percent_more_bytes(harness, succeed, tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "write_report", lambda *_: None)
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("runs\nout\n")
    (tmp_path / "out").mkdir()
    for sent in (1000, 1050):
        (tmp_path / "bench.py").write_text(f"SENT = {sent}\n{BENCH}")
        commit(tmp_path, f"sent-{sent}")
    arguments = ("gate", *OWN, "--baseline=HEAD^", "--study=g")
    files = ("--write=junit=out/gate.xml", "--write=markdown=out/gate.md")
    code, out, err = harness(*arguments, *files)

    assert ExitCode.REGRESSION == code, err
    assert 'failures="3"' in (tmp_path / "out" / "gate.xml").read_text()
    assert (
        "**REGRESS: throughput, bytes against"
        in (tmp_path / "out" / "gate.md").read_text()
    )
    assert re.search(
        r"bench.py x2, weak: bytes +\+5.0 %, exact: 2000 to 2100 +2 +regress", out
    )
    assert "REGRESS: throughput, bytes against revision HEAD^ (" in out
    assert "2 inconclusive, 2 regress" in out
    assert "so there is no spread that an interval could show" in out
    code, out, _ = harness(*arguments, "--format=json")
    found = json.loads(out)["cases"][2]
    assert (1000.0, 1050.0, 2) == (found["before"], found["after"], found["n"])
    assert 0.05 == pytest.approx(found["slowdown"])
    succeed("verify", "g")
    trial = next(iter(Store(tmp_path / "runs" / "g").trials()))
    (count,) = trial.result.window_metrics
    assert (5, "bytes", 1.0) == (count.num_examples, count.name, count.confidence)


def reader_of(*counts):
    program = Program(command="own", metric="wall", unit="images", counts=counts)
    return OutputReader(program)


def test_the_last_number_of_either_stream_counts():
    reader = reader_of("traces=traced ([0-9]+)", "sent=sent ([0-9.e+]+)")
    chunks = ((0, b"traced 3\nsent 1e3\ntra"), (1, b"traced 9"), (0, b"ced 0\n"))
    for ns, (stream, chunk) in enumerate((*chunks, (1, b""))):
        assert [] == list(reader.feed(stream, chunk, ns))

    assert {("traces", 9.0, 3), ("sent", 1000.0, 1)} == {
        (count["name"], count["value"], count["num_examples"])
        for count in reader.counts()
    }


def test_a_count_that_says_nothing_fails_its_trial():
    reader = reader_of("a=n ([^ ]+)")
    with pytest.raises(CommandError, match=r"no line that .* matches --count 'a'"):
        list(reader.counts())
    with pytest.raises(ReadingError, match="has '-1', which is below zero"):
        list(reader.feed(0, b"n -1\n", 1))
    with pytest.raises(ReadingError, match="pattern of --count matches 2 times"):
        list(reader.feed(1, b"n 1 n 2\n", 1))


def test_a_program_without_counts_keeps_its_ids(make_spec):
    """Of studies that were begun before there were any."""
    own = Program(command="x {replicas}", metric="throughput=(x)", unit="samples")
    plain = make_spec(program=own)
    counted = make_spec(program=own.model_copy(update={"counts": ("a=(x)",)}))

    assert "2ce4f7c7ac4d34576006" == trial_id(plain)
    assert trial_id(plain) != trial_id(counted)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"


RATES = "for step in range(5):\n    print('rate', step + 1, flush=True)\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository, in which the command starts."""
    folder = tmp_path / "own"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name in ("src/train.py", "kept.txt", "removed.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(RATES)
    commit(folder, "first")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def gate(root, capsys):
    """Returns a function that compares the tree with its commit."""

    def run(*options, script="src/train.py"):
        code = main(
            (
                *("gate", f"--command=python3 {script} {{replicas}}", "--replicas=1"),
                *("--metric=throughput=rate ([0-9.]+)", "--per-replica-batch-size=1"),
                *("--mode=weak", "--repeats=2", "--baseline=HEAD", "--study=g"),
                *options,
            ),
            run_overrides={"canary": lambda _core: 0.2},
        )
        return code, capsys.readouterr().err

    return run


@pytest.mark.processes
@pytest.mark.usefixtures("forked_trials")
def test_the_present_state_is_that_of_the_working_tree(root, gate, tmp_path):
    (root / "src" / "train.py").write_text(f"{RATES}# changed")
    (root / "new.txt").write_text("new")
    (root / "removed.txt").unlink()
    (root / ".gitignore").write_text("ignored\n")
    (root / "runs").mkdir()
    for name in ("ignored", "a.pyc", "runs/plan.json"):
        (root / name).write_text(name)
    copied = tmp_path / "copied"
    setup = f'mkdir -p {copied} && cp -a . {copied}/$(basename "$PWD") && pwd'
    code, err = gate(f"--setup={setup} >> {copied}/folders")
    here, there = (copied / name for name in ("this", "base"))
    folders = (copied / "folders").read_text().split()

    assert code in (ExitCode.OK, ExitCode.INCONCLUSIVE, ExitCode.REGRESSION), err
    # Or the stack of one side would lie elsewhere than that of the other.
    assert [2, 1] == [len(folders), len({*map(len, folders)})]
    assert {".gitignore", "kept.txt", "new.txt", "src"} == names_in(here)
    assert {"kept.txt", "removed.txt", "src"} == names_in(there)
    assert f"{RATES}# changed" == (here / "src" / "train.py").read_text()
    assert RATES == (there / "src" / "train.py").read_text()
    (revision,) = {*(code := plan_in(root).program_code)} - {""}
    assert code[""].keys() - code[revision].keys() == {
        f"uncommitted {name}"
        for name in (
            *(".gitignore (data)", "new.txt (data)", "removed.txt"),
            "src/train.py",
        )
    }
    assert not any(map(os.path.exists, folders))
    assert f"{RATES}# changed" == (root / "src" / "train.py").read_text()


def names_in(folder):
    return {path.name for path in folder.iterdir()} - {".git"}


def plan_in(folder):
    return Store.open(folder / "runs" / "g").read_plan()


@pytest.mark.processes
@pytest.mark.usefixtures("forked_trials")
def test_both_sides_start_where_the_command_was_started(root, gate, monkeypatch):
    (root / "src" / "train.py").write_text(f"{RATES}# changed")
    monkeypatch.chdir(root / "src")
    _, err = gate("--setup=test $(basename $PWD) = src", script="train.py")

    (program,) = {trial.spec.program for trial in plan_in(root / "src").trials}
    assert "src" == program.folder, err


def test_pointers_of_lfs_are_no_files(root, gate):
    (root / ".gitattributes").write_text("*.bin filter=lfs\n")
    (root / "data.bin").write_text(POINTER)
    git(root, "add", "--all")
    git(root, "-c", "filter.lfs.clean=cat", "commit", "--quiet", "-m", "second")
    code, err = gate()

    message = (
        r"this tree has pointers of Git LFS .* such as 'data.bin'; install git-lfs"
    )
    assert ExitCode.USAGE == code
    assert re.search(message, err)


def test_a_submodule_that_cannot_be_fetched_is_said(root, gate, tmp_path, monkeypatch):
    git(root, "clone", "--quiet", str(root), str(tmp_path / "library"))
    git(root, "submodule", "add", "--quiet", str(tmp_path / "library"), "library")
    commit(root, "second")
    settings = tmp_path / "home"
    settings.mkdir()
    monkeypatch.setenv("HOME", str(settings))
    code, err = gate()

    assert ExitCode.USAGE == code
    assert re.search(r"this tree cannot be checked out: .*; fix", err)
    (settings / ".gitconfig").write_text('[protocol "file"]\n allow = always\n')
    _, err = gate("--setup=test -f library/kept.txt && exit 7")
    assert "fails in this tree with code 7" in err


MOST_CHANGED = 500


def test_too_much_that_is_not_committed_is_refused(root, gate):
    for number in range(MOST_CHANGED + 1):
        (root / f"{number}.txt").touch()
    code, err = gate()

    assert ExitCode.USAGE == code
    assert re.search(r"501 files of .* such as '0.txt', .*gitignore", err)


def test_a_repository_that_git_does_not_read_is_none_of_nobody(root, gate):
    (root / ".git" / "config").write_text("[core\n")
    code, err = gate()

    assert ExitCode.USAGE == code
    assert re.search(
        r"git does not read the repository of .*bad config line 1.*safe.directory", err
    )
