"""Estimates, and what is shown while trials run, in sequence and in an interleaved
study.
"""

import contextlib
import io
import json
import os
import pty
import re
import sys
from types import SimpleNamespace

import pytest
from command_lines import overridden, smoke_sweep
from fake_machine import with_cpus

from harness.run import progress, rounds
from results import Failure, Phase, StatusRecord, TrialStatus

SWEEP = smoke_sweep(
    "--mode=weak --repeats=1 --order=sequential --budget=none --no-match"
)
FOUR_CORES = with_cpus(range(4))


@pytest.fixture
def plan(succeed):
    """Returns a function that plans a sweep on four cores."""

    def run(*options):
        words = overridden(SWEEP, "--dry-run", "--json", *options)
        return json.loads(succeed(*words, overrides=FOUR_CORES))

    return run


@pytest.fixture
def record(tmp_path):
    """Returns a function that records that trials have ended, as earlier sweeps do."""

    def write(planned, duration_sec):
        for trial in planned["trials"]:
            folder = tmp_path / "runs" / "old" / "trials" / trial["trial_id"]
            folder.mkdir(parents=True)
            (folder / "spec.json").write_text(json.dumps(trial["spec"]))
            ended = status_of(TrialStatus.OK, duration_sec=duration_sec)
            (folder / "status.json").write_text(ended.model_dump_json())

    return write


def test_guesses_come_from_the_most_similar_trials(plan, record):
    def of_case(backend, num_replicas, *more):
        return plan(f"--backends={backend}", f"--replicas={num_replicas}", *more)

    record(of_case("in_graph", 1), 10.0)
    record(of_case("in_graph", 2), 20.0)
    record(of_case("tf_mirrored", 2), 50.0)

    for case, expected in (
        (("in_graph", 2), 20.0),
        (("tf_mirrored", 1), 10.0),
        (("in_graph", 4), 20.0),
    ):
        found = of_case(*case)
        assert expected == found["estimated_sec"]
        assert "from earlier trials like these" == found["estimate_basis"]
    found = of_case("in_graph", 2, "--preset=laptop")
    assert 30.0 == found["estimated_sec"]
    assert "assuming 30 s per trial: no earlier ones" in found["estimate_basis"]
    # Of a quality run, its seconds are known.
    found = of_case("in_graph", 2, "--budget=50s", "--set=quality-repeats=2")
    assert 20.0 + 2 * (30.0 + 50.0) == found["estimated_sec"]


def test_the_time_left_moves_between_two_events(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    shown = progress.LiveProgress()
    texts = [str(shown)]
    shown.stage("", 200.0)
    for now[0] in (100.0, 120.0, 312.0):
        texts.append(str(shown))

    assert texts == ["", "3 min 20 s left", "3 min 00 s left", "12 s over the estimate"]
    for seconds, text in ((0.2, "0 s"), (59.6, "1 min 00 s"), (7500, "2 h 05 min")):
        assert f"{text} left" == progress.left_text(seconds)


def test_a_round_names_its_case_and_the_rate_so_far(small_plan):
    trial = small_plan.trials[0]
    blocks = [
        SimpleNamespace(
            is_valid=k != 3, num_steps=2, start_ns=0, end_ns=10**9 + 10**6 * k
        )
        for k in range(9)
    ]
    texts = [
        rounds._so_far(SimpleNamespace(spec=trial.spec, blocks=blocks[:number]))
        for number in (2, 9)
    ]

    assert "in_graph x1" == texts[0]
    found = re.fullmatch(
        r"in_graph x1, ([\d.]+) \[([\d.]+), ([\d.]+)\]/s so far", texts[1]
    )
    rate, low, high = map(float, found.groups())
    assert low < rate < high
    assert pytest.approx(2 * trial.spec.global_batch_size, rel=0.02) == rate


def test_the_phase_of_a_running_trial_is_read_from_its_rank_file(tmp_path):
    reader = progress.PhaseWatch(tmp_path)
    shown = [reader.look()]
    path = tmp_path / "rank_0.jsonl"
    with path.open("a") as file:
        for text in (
            '{"kind": "phase", "phase": "first_step", "ns": 1}\n',
            '{"kind": "step", "phase": "x", "index": 0}\n{"kind": "phase", "pha',
            'se": "train", "ns": 2}\n',
            '{"kind": "point"}\n{"kind": "phase", "phase": "no such"}\n',
        ):
            file.write(text)
            file.flush()
            shown.append(reader.look())

    assert shown == [
        "starting",
        "tracing the first step",
        "tracing the first step",
        "training",
        "training, 1 evaluated",
    ]
    assert set(progress.WORDS) == set(Phase)


def test_unreadable_studies_are_no_basis(plan, tmp_path):
    good = status_of(TrialStatus.OK).model_dump_json()
    planned = plan("--backends=in_graph", "--replicas=1")
    (spec_text,) = (json.dumps(trial["spec"]) for trial in planned["trials"])
    other = status_of(TrialStatus.FAILED, duration_sec=99.0).model_dump_json()
    for number, texts in enumerate(
        [
            ("{", "{}"),
            ('{"status": "ok"}', "{}"),
            ("[" * 100_000, spec_text),
            (good.replace("9.0", "1e999"), spec_text),
            (good, "{}"),
            (other, spec_text),
            (good, spec_text),
        ]
    ):
        folder = tmp_path / "runs" / "s" / "trials" / str(number)
        folder.mkdir(parents=True)
        for name, text in zip(("status.json", "spec.json"), texts, strict=True):
            (folder / name).write_text(text)

    assert 9.0 == plan("--backends=in_graph", "--replicas=1")["estimated_sec"]


def status_of(status, failure=None, duration_sec=9.0):
    return StatusRecord(
        trial_id="0" * 20,
        status=status,
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:00:09+00:00",
        duration_sec=duration_sec,
        failure=failure,
    )


def drive(shown, plan):
    shown.begin(8, 6)
    failure = Failure(phase=Phase.BUILD, reason="[red]no[/red] such op")
    shown.trial_started(plan.trials[0], 100.0)
    shown.trial_ended(plan.trials[0], status_of(TrialStatus.OK), None)
    shown.trial_started(plan.trials[1], None)
    shown.trial_ended(plan.trials[1], status_of(TrialStatus.FAILED, failure), None)
    shown.end()


def test_plain_progress_is_one_line_per_event(small_plan):
    stream = io.StringIO()
    drive(progress.Progress(stream), small_plan)
    lines = stream.getvalue().splitlines()

    assert lines[0] == "8 trials, 6 already finished"
    assert lines[1].startswith("[7/8] in_graph x1 weak, batch 1x4, repetition 0")
    assert lines[1].endswith("(1 min 40 s left)")
    assert lines[4] == "[8/8]   failed, took 9 s - build: [red]no[/red] such op"
    assert "\x1b" not in stream.getvalue()


def read_to_end(master):
    """Reads what a pseudo terminal still holds after its other end was closed."""
    chunks = []
    with contextlib.suppress(OSError):  # EIO is how a pseudo terminal ends
        while chunk := os.read(master, 4096):
            chunks.append(chunk)
    os.close(master)
    return b"".join(chunks).decode()


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_a_live_bar(small_plan, monkeypatch, no_color):
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        shown = progress.make_progress()
        drive(shown, small_plan)
    text = read_to_end(master)
    colors = re.findall(r"\x1b\[(?:\d+;)*3[0-9](?:;\d+)*m", text)

    assert isinstance(shown, progress.LiveProgress)
    assert "1 min 40 s left" in text
    assert "6/8" in text
    assert "[red]no[/red] such op" in text
    assert no_color == (not colors)


FIXED = ("--time-budget=2min", "--repeats=2")
# One that may go on says until when.
TARGET = ("--replicas=1,2", "--time-budget=30min", "--target=3%", "--repeats=5")


@pytest.mark.parametrize(
    ("options", "each_sec", "expected"),
    [
        # ``--time-budget 2min`` is two minutes, not 30 s for each of four trials.
        (FIXED, None, "2 min 00 s (2 runs of 1 min 00 s, or less after 23 r"),
        # Earlier trials make an interleaved study shorter, and never longer.
        (FIXED, 5.0, "20 s (2 runs of 1 min 00 s at most; from earlier trials"),
        (FIXED, 100.0, "2 min 00 s (2 runs of 1 min 00 s, or"),
        (TARGET, None, "12 min 00 s to 30 min 00 s (5 or more runs of 2 min 24 "),
    ],
)
def test_a_plan_says_the_time_of_its_interleaved_study(
    plan, record, succeed, options, each_sec, expected
):
    usual = ("--backends=in_graph", "--replicas=1", "--order=interleaved")
    words = overridden((*usual, "--set=rounds=23"), *options)
    if each_sec:
        record(plan(*words), each_sec)
    words = overridden((*SWEEP, "--dry-run"), *words)
    out = succeed(*words, overrides=FOUR_CORES)

    assert f", about {expected}" in out
