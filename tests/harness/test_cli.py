"""The command line: what it prints, where, with which exit code; and bad input."""

from __future__ import annotations

import json
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import click.testing
import pytest

from harness import catalog, cli, exit_codes
from results.store import Store

if TYPE_CHECKING:
    from pathlib import Path

SMALL = (
    "--workload=resnet50",
    "--preset=smoke",
    "--replicas=1,2",
    "--mode=weak",
    "--repeats=2",
)


@pytest.fixture
def harness(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that runs the command line in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*args: Any, overrides: Any = None) -> Any:
        code = cli.main(args, run_overrides=overrides)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def written(root: Path) -> Any:
    """Returns everything below a directory."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_plan_lists_trials_on_stdout_and_notes_on_stderr(
    harness: Any, tmp_path: Path
) -> None:
    """Data and remarks do not mix, and nothing is written."""
    code, out, err = harness("plan", "--workload=resnet50", "--preset=smoke")

    assert exit_codes.OK == code
    assert "in_graph x1 weak+strong, batch 1x4, repetition 0" in out
    assert "assuming 30 s per trial: no earlier ones like these" in out
    assert "default for" in err
    assert [] == written(tmp_path)


def test_dry_run_is_the_plan(harness: Any, tmp_path: Path) -> None:
    """Two names for one thing."""
    code, out, _ = harness("sweep", *SMALL, "--dry-run", "--json")
    _, planned, _ = harness("plan", *SMALL, "--json")
    first, second = json.loads(out), json.loads(planned)

    assert exit_codes.OK == code
    assert first["trials"] == second["trials"]
    assert len(first["trials"]) == first["num_missing"] == 8
    assert [] == written(tmp_path)


@pytest.mark.parametrize("what", ["workloads", "backends", "presets"])
def test_list_prints_names_as_text_and_json(harness: Any, what: str) -> None:
    """Both have the same names."""
    code, out, _ = harness("list", what, "--json")
    (rows,) = json.loads(out).values()
    _, text, _ = harness("list", what)

    assert exit_codes.OK == code
    assert all(row["name"] in text for row in rows)


def test_list_without_a_name_prints_everything(harness: Any) -> None:
    """For who does not know what there is."""
    _, out, _ = harness("list")

    assert all(name in out for name in ("resnet50", "in_graph", "laptop"))


BAD_INPUT = [
    (("--workload=vgg",), r"unknown workload 'vgg'; known are resnet50"),
    (("--backends=nccl",), r"unknown backend 'nccl'; known are single, in_graph"),
    (("--preset=huge",), r"unknown preset of resnet50 'huge'; known are smoke"),
    (("--data=mnst",), r"'mnst'"),
    (("--replicas=0",), r"--replicas: '0' is not positive"),
    (("--replicas=1,-1",), r"--replicas: '-1' in '1,-1' is not positive"),
    (("--replicas=1.5",), r"--replicas: '1.5' is not a whole number"),
    (("--replicas=1,3", "--mode=strong"), r"global batch 4 does not divide over 3"),
    (("--mode=medium",), r"--mode: unknown scaling mode 'medium'; allowed are weak"),
    (("--repeats=0",), r"'--repeats': 0 is not in the range x>=1"),
    (("--timeout=0",), r"'--timeout': 0.* is not in the range x>0"),
    (("--study=",), r"--study '' is not a study name"),
    (("--study=a/b",), r"--study 'a/b' is not a study name"),
    (("--option=depth",), r"--option: 'depth' is not KEY=VALUE"),
    (("--option=a=1", "--option=a=2"), r"--option: 'a' is given twice"),
    (("--option=no_such_option=1",), r"no_such_option"),
    (("--device=tpu",), r"'--device': 'tpu' is not one of 'cpu', 'gpu'"),
    (("--repeat=3",), r"No such option.*--repeat"),
    (("--runs-dir=file",), r"--runs-dir 'file': 'file' is a file, but a directory"),
    (("--runs-dir=file/x",), r"'.*file' is a file, but a directory is needed"),
    (("--runs-dir=/proc/runs",), r"cannot write study directory '/proc/runs/"),
    (("--runs-dir=taken", "--study=f"), r"'taken/f' is a file, but a study is a dir"),
    (("--runs-dir=taken", "--study=d"), r"'taken/d' is not a study: it has 'x'"),
]


@pytest.mark.parametrize(("args", "message"), BAD_INPUT)
def test_bad_input_is_one_line_exit_2_and_nothing_written(
    harness: Any, tmp_path: Path, args: Any, message: str
) -> None:
    """Before anything starts."""
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "d").mkdir(parents=True)
    (tmp_path / "taken" / "d" / "x").write_text("")
    (tmp_path / "taken" / "f").write_text("")
    before = written(tmp_path)
    defaults = ("--workload=resnet50", "--preset=smoke")
    code, out, err = harness("sweep", *defaults, *args)

    assert exit_codes.USAGE == code
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert_matches(message, err)
    assert before == written(tmp_path)


def assert_matches(pattern: str, text: str) -> None:
    """Fails with both when the pattern is not found."""
    assert re.search(pattern, text), f"{pattern!r} not in {text!r}"


def test_more_gpus_than_there_are_is_refused(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both numbers are named; nothing is started."""
    monkeypatch.setattr("harness.gpus.gpu_names", lambda: ("H200", "H200"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    code, _, err = harness(
        "sweep", "--workload=resnet50", "--device=gpu", "--replicas=1,4"
    )

    assert exit_codes.USAGE == code
    assert "--replicas asks for 4 GPUs, but this machine shows 2" in err


@pytest.mark.parametrize("verb", ["status", "resume", "report"])
def test_a_missing_study_is_one_line(harness: Any, verb: str) -> None:
    """Each reading verb says the same."""
    code, out, err = harness(verb, "nothing")

    assert exit_codes.USAGE == code
    assert out == ""
    assert_matches(r"^error: no study at 'runs/nothing': .*does not exist", err)


@pytest.mark.parametrize("verb", ["status", "resume", "report"])
def test_an_empty_study_directory_is_one_line(
    harness: Any, tmp_path: Path, verb: str
) -> None:
    """A directory is not a study yet."""
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    code, _, err = harness(verb, "empty")

    assert exit_codes.USAGE == code
    assert_matches(r"^error: no study at 'runs/empty': .*plan.json", err)


@pytest.mark.parametrize("verb", ["status", "resume", "report"])
def test_an_empty_study_name_is_one_line(harness: Any, verb: str) -> None:
    """As an unset shell variable gives it."""
    code, _, err = harness(verb, "")

    assert exit_codes.USAGE == code
    assert_matches(r"^error: study '' is empty", err)


def test_no_verb_is_a_usage_error(harness: Any) -> None:
    """Exit 0 would say that something was done."""
    code, out, err = harness()

    assert (exit_codes.USAGE, "") == (code, out)
    assert_matches(r"error: Missing command", err)


def test_every_verb_has_help() -> None:
    """Each option that is not obvious says what it is for."""
    runner = click.testing.CliRunner()
    for name in cli.cli.commands:
        result = runner.invoke(cli.cli, [name, "--help"])

        assert result.exit_code == 0
        assert cli.cli.commands[name].help


@pytest.mark.processes
def test_a_sweep_ends_with_table_and_report(
    harness: Any, overrides: Any, tmp_path: Path
) -> None:
    """Stdout has the table, stderr progress; the same command has nothing to do."""
    args = ("sweep", *SMALL, "--study=s")
    code, out, err = harness(*args, overrides=overrides)
    report = tmp_path / "runs" / "s" / "report" / "index.html"
    again = harness(*args, "--json", overrides=overrides)

    assert exit_codes.OK == code
    assert "images/s" in out
    assert "[8/8]   ok," in err
    assert "\x1b[" not in out + err
    assert "report: runs/s/report/index.html" in err
    assert "<html" in report.read_text()
    assert exit_codes.OK == again[0]
    assert json.loads(again[1])["coverage"]["ok"] == 8
    assert "8 trials, 8 finished before" in again[2]


@pytest.mark.processes
def test_another_setting_in_the_same_study_is_refused(
    finished: None, harness: Any, tmp_path: Path
) -> None:
    """The field is named, and the study is untouched."""
    before = written(tmp_path)
    code, _, err = harness("sweep", *SMALL, "--study=s", "--seed=1")

    assert exit_codes.USAGE == code
    assert_matches(r"study 's' was made with seed 0, this sweep has 1", err)
    assert before == written(tmp_path)


@pytest.mark.processes
def test_a_corrupt_record_is_named_and_the_rest_is_readable(
    finished: None, harness: Any, tmp_path: Path
) -> None:
    """Nothing is added to such a study; reading verbs show the others."""
    store = Store.open(tmp_path / "runs" / "s")
    trial_id = store.trial_ids()[0]
    (store.trial_dir(trial_id) / "result.json").write_text('{"schema_version": 1')
    swept = harness("sweep", *SMALL, "--study=s")
    resumed = harness("resume", "s")
    status = harness("status", "s")
    reported = harness("report", "s")

    for code, _, err in (swept, resumed, status, reported):
        assert exit_codes.USAGE == code
        assert_matches(
            rf"error: corrupt record .*{trial_id}/result.json.*not JSON", err
        )
    assert "1 missing, 7 ok" in status[1]
    assert "remove the trial's directory" in swept[2]


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["sweep", "resume", "status", "report"])
def test_a_newer_store_is_refused_with_an_instruction(
    finished: None, harness: Any, tmp_path: Path, verb: str
) -> None:
    """An old program must not misread a new record."""
    path = tmp_path / "runs" / "s" / "plan.json"
    plan = json.loads(path.read_text())
    path.write_text(json.dumps(plan | {"schema_version": 7}))
    args = (*SMALL, "--study=s") if verb == "sweep" else ("s",)
    code, _, err = harness(verb, *args)

    assert exit_codes.USAGE == code
    assert_matches(r"newer version \(schema 7, this reads up to 2\): upgrade", err)


@pytest.mark.processes
def test_report_goes_where_it_is_asked_to(
    finished: None, harness: Any, tmp_path: Path
) -> None:
    """The path is data, so it is on stdout."""
    code, out, _ = harness("report", "s", "-o", "elsewhere/r.html")

    assert (exit_codes.OK, "elsewhere/r.html\n") == (code, out)
    assert (tmp_path / "elsewhere" / "r.html").exists()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("behavior", "expected"),
    [
        ("tf_mirrored:2:build_fail", exit_codes.SOME_TRIALS_FAILED),
        ("*:*:build_fail", exit_codes.NOTHING_MEASURED),
    ],
)
def test_failures_have_exit_codes_of_their_own(
    harness: Any,
    overrides: Any,
    monkeypatch: pytest.MonkeyPatch,
    behavior: str,
    expected: Any,
) -> None:
    """Zero trials measured is never success; status lists what failed."""
    monkeypatch.setenv("FAKE_BEHAVIOR", behavior)
    args = (*SMALL, "--study=s", "--repeats=1")
    code, _, err = harness("sweep", *args, overrides=overrides)
    again, _, _ = harness("resume", "s", overrides=overrides)
    _, out, _ = harness("status", "s")

    assert expected == code == again
    assert_matches(r"[14] of 4 trials are not ok: see 'status runs/s'; --retry", err)
    assert "failed in build: the reducer is out of paper" in out


@pytest.mark.processes
def test_plan_estimates_from_earlier_trials(finished: None, harness: Any) -> None:
    """And says so."""
    _, out, _ = harness("plan", *SMALL, "--study=t", "--seed=5")

    assert "8 to run" in out
    assert "from earlier trials like these" in out


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_exits_130_and_says_how_to_resume(
    start_harness: Any, number: Any, tmp_path: Path
) -> None:
    """Ctrl-C and a polite kill are the same; no process is left."""
    process = start_harness(
        "sweep", *SMALL, "--study=s", FAKE_BEHAVIOR="in_graph:2:hang"
    )
    rank = tmp_path / "runs" / "s" / "trials"
    wait_until(lambda: len(list(rank.glob("*/rank_0.jsonl"))) == 2)
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    store = Store.open(tmp_path / "runs" / "s")

    assert exit_codes.INTERRUPTED == process.returncode
    assert "resume with: python -m harness resume runs/s" in err
    assert len(store.finished_ids()) == 1


def wait_until(condition: Any) -> None:
    """Waits, at most 20 s."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.processes
def test_two_harnesses_on_one_study_the_second_is_refused(
    start_harness: Any, tmp_path: Path
) -> None:
    """The refusal names the holder; the first goes on undisturbed."""
    first = start_harness("sweep", *SMALL, "--study=s", FAKE_STEP_SEC="0.03")
    wait_until((tmp_path / "runs" / "s" / ".lock-holder").exists)
    second = start_harness("sweep", *SMALL, "--study=s")
    _, second_err = second.communicate(timeout=20)
    first.communicate(timeout=60)

    assert exit_codes.USAGE == second.returncode
    assert_matches(rf"error: study .* is in use by process {first.pid}", second_err)
    assert exit_codes.OK == first.returncode


def test_code_digest_covers_the_measured_code_only(tmp_path: Path) -> None:
    """A change of the replicator counts, one of the report does not."""
    root = tmp_path
    for name in catalog._MEASURED_HARNESS_FILES:
        (root / "harness").mkdir(exist_ok=True)
        (root / "harness" / name).write_text("")
    for package in ("replicator", "workloads", "reports"):
        (root / package).mkdir()
        (root / package / "a.py").write_text("x = 1\n")
    digests = [catalog.digest_code(root)]
    (root / "reports" / "a.py").write_text("x = 2\n")
    digests.append(catalog.digest_code(root))
    (root / "replicator" / "a.py").write_text("x = 2\n")
    digests.append(catalog.digest_code(root))
    (root / "workloads" / "a.py").rename(root / "workloads" / "b.py")
    digests.append(catalog.digest_code(root))

    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_fault_of_ours_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 1 means a regression, so a crash must not use it."""

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("broken inside")

    monkeypatch.setattr(cli.cli, "main", crash)

    code = cli.main(["list"])

    told = capsys.readouterr().err
    assert exit_codes.INTERNAL_FAULT == code
    assert "RuntimeError: broken inside" in told
    assert "fault of the harness, not of the request" in told
