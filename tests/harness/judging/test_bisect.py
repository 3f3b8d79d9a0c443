"""``gate --bisect`` in a repository of the user's: what it finds, and says."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli import exit_codes
from harness.cli.verbs import beside
from harness.errors import Interrupted, RevisionError
from harness.judging import commit_range

if TYPE_CHECKING:
    from pathlib import Path

# Its rate is its own claim, and hardly varies: a gate of two generations is enough.
BENCH = """
import random, sys, time
seed = int(sys.argv[1])
noise = random.Random(f"{seed} {COST}")
for step in range(5):
    print("cells/s:", 1e5 / COST * noise.gauss(1, 1e-4), flush=True)
    time.sleep(0.01)
"""
COSTS = (100, 101, 130, None, 130, 131, 130)
"""Of the commits c0 to c6; c2 is the first bad one, and c3 does not run."""
OPTIONS = (
    "gate",
    "--command=python3 bench.py {seed}",
    "--metric=throughput=cells/s: ([0-9.]+)",
    "--per-replica-batch-size=1",
    "--replicas=1",
    "--mode=weak",
    "--repeats=2",
)


def git(root: Path, *arguments: str) -> str:
    """Runs git as nobody in particular; returns what it prints."""
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The repository, in the folder in which ``harness`` runs."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    (tmp_path / ".gitignore").write_text("runs\n")
    for index, cost in enumerate(COSTS):
        code = "raise SystemExit(3)\n" if cost is None else f"COST = {cost}\n{BENCH}"
        (tmp_path / "bench.py").write_text(f"# {index}\n{code}")
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "-m", f"Commit number {index}")
        git(tmp_path, "tag", f"c{index}")
    return tmp_path


@pytest.fixture
def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps write no pages, which take longer than their trials."""
    monkeypatch.setattr("reports.page.build.write_report", lambda *_: None)


@pytest.fixture
def judged(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces steps by their exit codes; returns a function that sets these.

    What is returned lists the commits that were judged, by tag, with their levels.
    """
    names = {git(root, "rev-parse", f"c{i}"): f"c{i}" for i in range(len(COSTS))}
    asked: list[tuple[str, float]] = []

    def replace(codes: dict[str, Any]) -> list[tuple[str, float]]:
        def measure(_request: Any, _call: Any, rule: Any, **of: Any) -> int:
            name = names[of["source"].commit]
            asked.append((name, rule.alpha))
            code = codes[name]
            if isinstance(code, BaseException):
                raise code
            return int(code)

        monkeypatch.setattr(beside, "measure", measure)
        return asked

    return replace


CODES = {
    **dict.fromkeys(("c1", "c2", "c3"), exit_codes.OK),
    **dict.fromkeys(("c4", "c5", "c6"), exit_codes.REGRESSION),
}


@pytest.mark.processes
@pytest.mark.usefixtures("without_reports")
def test_a_planted_slowdown_is_found_past_a_commit_that_does_not_run(
    harness: Any, root: Path, overrides: dict[str, Any]
) -> None:
    """With real programs: +30 % from c2 on, and c3 exits with 3; nothing stays."""
    arguments = (*OPTIONS, "--bisect", "c0", "c6", "--study=b")
    code, out, err = harness(*arguments, "--format=json", overrides=overrides)
    found = json.loads(out)
    by_commit = {step["commit"]: step for step in found["steps"]}

    assert exit_codes.REGRESSION == code, err
    ids = [git(root, "rev-parse", f"c{index}") for index in range(len(COSTS))]
    assert ids[2] == found["first_bad"]
    assert "skipped" == by_commit[ids[3]]["outcome"]
    assert "exited with code 3" in by_commit[ids[3]]["reason"]
    (case,) = by_commit[ids[2]]["cases"]
    assert case["low"] < 0.30 < case["high"]
    assert 0.02 > case["high"] - case["low"]
    studies = [path.name for path in (root / "runs").glob("b-*")]
    assert len([step for step in found["steps"] if step["study"]]) <= len(studies)
    assert 1 == len(git(root, "worktree", "list").splitlines())
    assert not git(root, "status", "--porcelain")

    code, again, err = harness(*arguments, "--format=json", overrides=overrides)

    assert exit_codes.REGRESSION == code
    assert found == json.loads(again)
    assert not err


@pytest.mark.processes
@pytest.mark.usefixtures("without_reports", "root")
@pytest.mark.parametrize(("ends", "expected"), [(("c3", "c4"), 4), (("c2", "c3"), 5)])
def test_an_end_that_does_not_run_ends_it(
    harness: Any, overrides: dict[str, Any], ends: tuple[str, str], expected: int
) -> None:
    """Nothing can be judged beside it, or is known to be bad; its failure is shown.

    Where it is the first to run, nothing else is started.
    """
    code, out, err = harness(*OPTIONS, "--bisect", *ends, overrides=overrides)

    assert (expected, "") == (code, out)
    assert "cannot be measured: failed: the command exited with code 3" in err


def test_the_first_bad_commit_is_named_with_its_subject(
    harness: Any, judged: Any
) -> None:
    """Exit code 1: a regression; each step has an equal share of the error."""
    asked = judged(CODES)
    code, out, err = harness(*OPTIONS, "--bisect", "c0", "c6", "--alpha=8%")

    assert exit_codes.REGRESSION == code, err
    assert "FIRST BAD COMMIT: " in out
    assert "(Commit number 4); wrong with probability 8.0% at most" in out
    assert ["c6", "c3", "c4"] == [name for name, _ in asked]
    assert [pytest.approx(0.02)] * 3 == [level for _, level in asked]


@pytest.mark.parametrize(
    ("codes", "expected", "text"),
    [
        ({"c6": 0}, exit_codes.OK, r"NO REGRESSION: "),
        ({"c6": 3}, exit_codes.INCONCLUSIVE, r"NOT DECIDED: whether "),
        ({"c6": 6}, exit_codes.UNFIT, r"NOT DECIDED: whether "),
        ({"c4": 3}, exit_codes.INCONCLUSIVE, r"is one of 2, oldest first: "),
    ],
)
def test_other_answers_have_their_exit_codes(
    harness: Any, judged: Any, codes: dict[str, int], expected: int, text: str
) -> None:
    """No regression, nothing decided, an unfit machine, and a range of commits."""
    judged(CODES | codes)
    code, out, err = harness(*OPTIONS, "--bisect", "c0", "c6", "--format=markdown")

    assert expected == code, err
    assert text in out


def test_a_revision_that_cannot_be_prepared_is_skipped_or_ends_it(
    harness: Any, judged: Any
) -> None:
    """In the middle of the history it is skipped; at its end it is an error."""
    error = RevisionError("--setup 'make' fails in commit x with code 2")
    judged(CODES | {"c3": error})
    code, out, _ = harness(*OPTIONS, "--bisect", "c0", "c6")

    assert exit_codes.INCONCLUSIVE == code
    assert "skipped" in out
    judged(CODES | {"c6": error})
    code, out, err = harness(*OPTIONS, "--bisect", "c0", "c6", "--study=other")

    assert (exit_codes.USAGE, "") == (code, out)
    assert "--setup 'make' fails" in err


def test_the_same_command_continues_after_an_interrupt(
    harness: Any, judged: Any
) -> None:
    """No commit is judged twice; the level of a step that did not end is kept."""
    asked = judged(CODES | {"c4": Interrupted("SIGINT")})
    code, _, err = harness(*OPTIONS, "--bisect", "c0", "c6")

    assert exit_codes.INTERRUPTED == code
    assert "the same command continues" in err
    judged(CODES)
    code, out, _ = harness(*OPTIONS, "--bisect", "c0", "c6")

    assert exit_codes.REGRESSION == code
    assert ["c6", "c3", "c4", "c4"] == [name for name, _ in asked]
    assert 1 == len({round(level, 9) for _, level in asked})
    assert "Commit number 4" in out


def test_an_unfit_step_is_tried_again_in_a_study_of_its_own(
    harness: Any, judged: Any, root: Path
) -> None:
    """It has spent its level, so the second attempt has less."""
    asked = judged(CODES | {"c3": exit_codes.UNFIT})
    arguments = (*OPTIONS, "--bisect", "c0", "c6", "--study=b")
    code, _, err = harness(*arguments)

    assert exit_codes.UNFIT == code
    assert "the same command tries again" in err
    judged(CODES)
    code, _, _ = harness(*arguments)
    (record,) = (root / "runs").glob("*.bisect.json")
    steps = json.loads(record.read_text())["steps"]

    assert exit_codes.REGRESSION == code
    assert asked[1][1] > asked[2][1]
    assert len({step["study"] for step in steps}) == len(steps)


def test_commits_with_the_same_files_are_not_measured(
    harness: Any, judged: Any, root: Path
) -> None:
    """A revert to the good state is good; what was judged before is not repeated."""
    asked = judged({})
    git(root, "checkout", "--quiet", "c0", "--", ".")
    git(root, "commit", "--quiet", "-m", "Go back")
    code, out, _ = harness(*OPTIONS, "--bisect", "c0", "HEAD")

    assert exit_codes.OK == code
    assert "its files are those of the good commit" in out
    assert not asked


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("c6", "c0"), "'c6' is no ancestor of 'c0'; give the good commit first"),
        (("c1", "c1"), "so nothing is between them"),
        (("c0", "nowhere"), "'nowhere' is no revision of"),
        (("c0", "c6", "--baseline=c0"), "--baseline has no effect with --bisect"),
        (("c0", "c6", "--format=junit"), "use one of text, markdown, json"),
        (("c0", "c6", "--metric=efficiency"), "--metric efficiency with --command"),
        (("c0",), "requires 2 arguments"),
    ],
)
def test_bad_requests_are_refused(
    harness: Any, root: Path, arguments: tuple[str, ...], message: str
) -> None:
    """In one line, with code 2; nothing is written."""
    code, out, err = harness(*OPTIONS, "--bisect", *arguments)

    assert (exit_codes.USAGE, "") == (code, out)
    assert message in err
    assert 1 == len(err.splitlines())
    assert not (root / "runs").exists()


def test_a_history_that_is_too_long_is_refused(
    harness: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be recorded."""
    monkeypatch.setattr(commit_range, "MAX_TRIALS", 5)
    code, _, err = harness(*OPTIONS, "--bisect", "c0", "c6")

    assert exit_codes.USAGE == code
    assert "6 commits are between them, at most 5 can be; give a later good" in err


def test_it_needs_a_command(harness: Any) -> None:
    """The history of this project is not the user's."""
    code, _, err = harness("gate", "--workload=resnet50", "--bisect", "a", "b")

    assert exit_codes.USAGE == code
    assert "--bisect without --command" in err


def test_it_needs_a_repository(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere there is no history."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    code, _, err = harness(*OPTIONS, "--bisect", "a", "b")

    assert exit_codes.USAGE == code
    assert "is not in a git repository, so it has no history" in err


def test_the_file_of_another_bisection_is_refused(harness: Any, judged: Any) -> None:
    """Other options under the same name would mix two questions."""
    judged(CODES)
    harness(*OPTIONS, "--bisect", "c0", "c6", "--study=b")
    code, _, err = harness(*OPTIONS, "--bisect", "c1", "c6", "--study=b")

    assert exit_codes.USAGE == code
    assert "is of another bisection" in err
