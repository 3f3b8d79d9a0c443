"""What a program counts: read beside its times, and compared exactly by a gate."""

import json
import re

import pytest
from command_lines import commit, git

from harness.cli import exit_codes
from harness.command import identity, numbers, program
from harness.command import reader as reader_lib
from harness.command.reader import CommandError, ReadingError
from harness.errors import PlanError, RevisionError
from harness.judging import revisions
from results import Program, Store
from results.records import identity as record_identity

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
    monkeypatch.setattr("reports.page.build.write_report", lambda *_: None)
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("runs\nout\n")
    (tmp_path / "out").mkdir()
    for sent in (1000, 1050):
        (tmp_path / "bench.py").write_text(f"SENT = {sent}\n{BENCH}")
        commit(tmp_path, f"sent-{sent}")
    arguments = ("gate", *OWN, "--baseline=HEAD^", "--study=g")
    files = ("--write=junit=out/gate.xml", "--write=markdown=out/gate.md")
    code, out, err = harness(*arguments, *files)

    assert exit_codes.REGRESSION == code, err
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
    return reader_lib.OutputReader(numbers.parse_metric("wall"), counts)


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

    assert "2ce4f7c7ac4d34576006" == record_identity.trial_id(plain)
    assert record_identity.trial_id(plain) != record_identity.trial_id(counted)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name in ("src/train.py", "kept.txt", "removed.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("committed")
    commit(folder, "first")
    return folder


def sides(root, folder=None):
    source = revisions.source_of(root, "HEAD", root / "runs")
    command = "python3 src/train.py {replicas}"
    record = Program(command=command, metric="throughput=(x)", unit="runs")
    own = program.make(record, folder or root, replicas=(1,))
    commit = revisions.find_commit("HEAD", source)
    return revisions.side_by_side(own, source, "HEAD", commit, print)


def test_the_present_state_is_that_of_the_working_tree(root):
    (root / "src" / "train.py").write_text("changed")
    (root / "new.txt").write_text("new")
    (root / "removed.txt").unlink()
    (root / ".gitignore").write_text("ignored\n")
    (root / "runs").mkdir()
    for name in ("ignored", "a.pyc", "runs/plan.json"):
        (root / name).write_text(name)

    with sides(root) as found:
        folders, revision = found["folders"], found["baseline"].revision
        here, there = folders[""], folders[revision]
        # Or the stack of one side would lie elsewhere than that of the other.
        assert len(str(here)) == len(str(there))
        assert {".gitignore", "kept.txt", "new.txt", "src"} == names_in(here)
        assert {"kept.txt", "removed.txt", "src"} == names_in(there)
        assert "changed" == (here / "src" / "train.py").read_text()
        assert "committed" == (there / "src" / "train.py").read_text()
        code = found["program"].code
        assert code[""].keys() - code[revision].keys() == {
            f"uncommitted {name}"
            for name in (
                *(".gitignore (data)", "new.txt (data)", "removed.txt"),
                "src/train.py",
            )
        }

    assert not here.exists()
    assert not there.exists()
    assert "changed" == (root / "src" / "train.py").read_text()
    with sides(root, root / "src") as found:
        assert {"src"} == {path.name for path in found["folders"].values()}
        assert "src" == found["program"].record.folder


def names_in(folder):
    return {path.name for path in folder.iterdir()} - {".git"}


def test_pointers_of_lfs_are_no_files(root):
    (root / ".gitattributes").write_text("*.bin filter=lfs\n")
    (root / "data.bin").write_text(POINTER)
    git(root, "add", "--all")
    git(root, "-c", "filter.lfs.clean=cat", "commit", "--quiet", "-m", "second")

    message = (
        r"this tree has pointers of Git LFS .* such as 'data.bin'; install git-lfs"
    )
    with pytest.raises(RevisionError, match=message), sides(root):
        pass


def test_a_submodule_that_cannot_be_fetched_is_said(root, tmp_path, monkeypatch):
    git(root, "clone", "--quiet", str(root), str(tmp_path / "library"))
    git(root, "submodule", "add", "--quiet", str(tmp_path / "library"), "library")
    commit(root, "second")
    settings = tmp_path / "home"
    settings.mkdir()
    monkeypatch.setenv("HOME", str(settings))

    message = r"this tree cannot be checked out: .*; fix"
    with pytest.raises(RevisionError, match=message), sides(root):
        pass
    (settings / ".gitconfig").write_text('[protocol "file"]\n allow = always\n')
    with sides(root) as found:
        assert (found["folders"][""] / "library" / "kept.txt").is_file()


def test_too_much_that_is_not_committed_is_refused(root, monkeypatch):
    monkeypatch.setattr(identity, "MOST_CHANGED", 2)
    for number in range(3):
        (root / f"{number}.txt").touch()

    with pytest.raises(PlanError, match=r"3 files of .* such as '0.txt', .*gitignore"):
        identity.find_repository(root)


def test_a_repository_that_git_does_not_read_is_none_of_nobody(root):
    (root / ".git" / "config").write_text("[core\n")

    message = r"git does not read the repository of .*bad config line 1.*safe.directory"
    with pytest.raises(PlanError, match=message):
        identity.find_repository(root)
    assert identity.find_repository(root.parent) is None
