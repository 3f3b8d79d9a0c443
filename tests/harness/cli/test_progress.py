"""Estimates, and what is shown while trials run, in sequence and in an interleaved
study.
"""

import concurrent.futures
import itertools
import json
import re
import shutil
import time

import pytest
from command_lines import overridden, smoke_sweep
from damaging import at_most, until
from fake_machine import with_cpus
from study_files import edit_record

from harness import ExitCode
from results import StatusRecord, Store, TrialStatus

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


def status_of(status, duration_sec=9.0):
    return StatusRecord(
        trial_id="0" * 20,
        status=status,
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:00:09+00:00",
        duration_sec=duration_sec,
    )


@pytest.fixture
def resume(finished, harness, forked_trials, overrides, monkeypatch, tmp_path):
    """Returns a function that runs three missing trials of eight, the last one fails.

    The clock stands still, and passes the last one at once; then ``late`` is called.
    """
    store = Store.open(tmp_path / "runs" / "s")
    cases = {}
    for planned in store.read_plan().trials:
        cases.setdefault(planned.case_id, []).append(planned)
    for trials, took_sec in zip(cases.values(), (7440.4, 59.4, 0.2), strict=False):
        missing, before = trials
        shutil.rmtree(store.trial_dir(missing.trial_id))
        record = store.trial_dir(before.trial_id) / "status.json"
        edit_record(record, duration_sec=took_sec)
    case = f"{missing.spec.backend}:{missing.spec.num_replicas}"
    monkeypatch.setenv("FAKE_BEHAVIOR", f"{case}:build_fail_red")
    now, numbers = [time.monotonic()], itertools.count()

    def run(last_sec, late=lambda: None):
        def canary(_core):  # before and after each trial
            if next(numbers) == 5:
                now[0] += last_sec
                late()
            return 0.2

        with monkeypatch.context() as patch:
            patch.setattr("time.monotonic", lambda: now[0])
            code, _, err = harness(
                "sweep", "--study=s", overrides=overrides | {"canary": canary}
            )
        assert ExitCode.SOME_TRIALS_FAILED == code, err
        return err

    return run


def test_plain_progress_is_one_line_per_event(resume):
    lines = resume(9.0).splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("8 trials"))
    lines = lines[first:]

    assert lines[0] == "8 trials, 5 already finished"
    assert lines[1].startswith("[6/8] in_graph x1 weak, batch 1x4, repetition 0")
    for line, left in ((1, "2 h 05 min"), (3, "1 min 00 s"), (5, "0 s")):
        assert lines[line].endswith(f"({left} left)")
    assert lines[2].startswith("[6/8]   ok, ")
    assert lines[6] == "[8/8]   failed, took 9 s - build: [red]no[/red] such op"
    assert not any("\x1b" in line for line in lines)


def test_a_terminal_gets_a_live_bar_whose_time_moves_between_two_events(
    resume, terminal
):
    def late():
        with at_most(30.0):
            while "over the estimate" not in text():
                time.sleep(0.02)

    with terminal() as text:
        resume(12.2, late)
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text())
    shown = re.findall(r"(\d+ \w+(?: \d+ \w+)?) (left|over the estimate)", plain)

    assert [
        *(("2 h 05 min", "left"), ("1 min 00 s", "left"), ("0 s", "left")),
        ("12 s", "over the estimate"),
    ] == [key for key, _ in itertools.groupby(shown)]
    for part in ("5/8", "7/8", "[red]no[/red] such op"):
        assert part in plain
    assert COLOR.search(text())


COLOR = re.compile(r"\x1b\[(?:\d+;)*3[0-9](?:;\d+)*m")


# Writes the next line, in two parts, once it is seen what the one before says.
WORKER = """
for line in 'phase": "build' 'phase": "first_step' 'phase": "warmup' \\
    'phase": "measure' 'phase": "train' 'none": "' 'phase": "sanity' 'phase": "report'
do
    until [ -e "$SEEN" ]; do sleep 0.01; done
    rm "$SEEN"
    printf '{"kind": "p' >> "$0/rank_0.jsonl"
    sleep 0.03
    case $line in
    none*) printf 'oint"}\\n{"kind": "phase", "phase": "no such"}\\n' ;;
    *) printf 'hase", "%s"}\\n' "$line" ;;
    esac >> "$0/rank_0.jsonl"
done
until [ -e "$SEEN" ]; do sleep 0.01; done
"""
PHASES = (
    *("starting", "building", "tracing the first step", "warming up", "measuring"),
    *("training", "training, 1 evaluated", "checking", "reporting"),
)


def test_the_phase_of_a_trial_is_shown_while_it_runs(
    harness, overrides, terminal, monkeypatch, tmp_path
):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    words = overridden(SWEEP, "--backends=in_graph", "--replicas=1", "--study=s")
    worker = {"worker_command": ("sh", "-c", WORKER), "look_sec": 0.01}

    def look():
        for phase in PHASES:
            until(lambda phase=phase: f"repetition 0: {phase}" in text())
            (tmp_path / "seen").touch()

    with terminal() as text, concurrent.futures.ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        code, _, err = harness(*words, overrides=overrides | worker)
        looking.result()
    assert ExitCode.NOTHING_MEASURED == code, err
    shown = re.findall(r"repetition 0: ([a-z0-9, ]*[a-z]) *[\r\n\x1b]", text())

    assert [*PHASES] == [key for key, _ in itertools.groupby(shown)]
    assert not COLOR.search(text())


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
