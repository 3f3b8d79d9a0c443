"""A gate is written for terminals, pull requests, CI systems and programs."""

import dataclasses
import json
import re
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports import (
    GATE_FORMATS,
    caveats_of,
    gate_record,
    limits,
    verdict,
    view_store,
)
from results import Evidence, Program, judging, load_study


@pytest.fixture(scope="module")
def judged(make, synthetic):
    """Returns a function that judges a study of two backends, 10 % slower."""
    defaults = {"backends": ("in_graph", "tf_mirrored"), "repeats": 4, "slower": 1.1}
    metric = judging.metric_of("throughput")
    rule = judging.Rule(metric=metric, delta=0.05, alpha=0.05)

    def judge(**fields):
        study = load_study(make(synthetic.gate_shape(**defaults | fields)))
        gate = judging.judge_revisions(study, rule, baseline="main")
        return gate_record(gate)

    return judge


@pytest.fixture(scope="module")
def slower(judged):
    return judged()


def test_the_text_ends_with_the_verdict(slower):
    lines = GATE_FORMATS["text"](slower).splitlines()

    assert re.match(r"case +slower by, interval, at least 90% +n +verdict", lines[0])
    assert re.search(
        r"in_graph x2, weak +\+\d+\.\d\s% \[\+\d+.*\] +4 +regress", lines[3]
    )
    assert lines[-5].startswith("A/A control (one case measured twice): ")
    assert lines[-4].startswith("4 runs cannot pass, ")
    assert lines[-3].startswith("intervals are ")
    assert "blocks: no block was discarded" == lines[-2]
    assert re.match(
        r"REGRESS: throughput against main: 4 regress \(slower by 5.0% matters",
        lines[-1],
    )


def test_junit_has_a_failure_per_regression(slower):
    suite = ET.fromstring(GATE_FORMATS["junit"](slower))

    assert ("5", "5", "0") == tuple(
        suite.get(name) for name in ("tests", "failures", "errors")
    )
    assert 5 == len(suite.findall("testcase/failure"))
    assert "in_graph x1, weak" == suite.find("testcase").get("name")


def test_junit_of_a_pass_has_no_failure_and_of_an_unfit_machine_an_error(judged):
    equal = {"backends": ("in_graph",), "slower": 1.0}
    passed, unfit = (
        ET.fromstring(GATE_FORMATS["junit"](judged(**equal, **fields)))
        for fields in ({"repeats": 15}, {"discarded_share": 0.5})
    )
    (error,) = unfit.findall("testcase[@name='all']/error")

    assert not passed.findall("testcase/*")
    assert error.get("message").startswith("UNFIT: throughput against main: no verdict")


def test_github_annotates_a_regression_as_an_error(slower):
    lines = GATE_FORMATS["github"](slower).splitlines()
    start = "::error title=performance gate::throughput: "

    assert 5 == len(lines)
    assert all(line.startswith(start) for line in lines[:4])
    assert "%25" in lines[0]
    assert not re.search(r"%(?!25)", lines[0])


def test_markdown_is_a_table_below_the_verdict(slower):
    lines = GATE_FORMATS["markdown"](slower).splitlines()
    table = [line for line in lines if line.startswith("|")]

    assert lines[0].startswith("**REGRESS: throughput against main")
    assert {5} == {line.count("|") for line in table}
    assert 6 == len(table)


def test_json_has_the_figures(slower):
    data = json.loads(GATE_FORMATS["json"](slower))

    assert "regress" == data["verdict"]
    assert 0 < data["cases"][0]["low"] < data["cases"][0]["slowdown"]
    assert "blocks: no block was discarded" in data["notes"]


def test_a_gate_without_any_trial_says_so(judged, synthetic):
    fields = {"backends": ("in_graph",), "modes": (synthetic.WEAK,)}
    timeout = synthetic.TrialStatus.TIMEOUT
    statuses = synthetic.every(timeout, repetitions=range(4), **fields)
    found = judged(statuses=statuses, **fields)

    assert "NO VERDICT: throughput against main: nothing was measured" == (
        found.headline
    )


STEPS = 10


@pytest.fixture(scope="module")
def printed(make, synthetic):
    """Returns a function that shows a program by what its cases printed, and when."""
    fields = {"backends": ("own",), "modes": (synthetic.WEAK,), "is_evaluated": False}
    view = view_store(make(**fields))

    def shown(cases, every=None):
        per_line = "" if every is None else f"[every {every}]"
        own = Program(command="a", metric=f"throughput{per_line}=x", unit="rows")
        entries = (
            trial(entry, own, **cases[entry.spec.num_replicas])
            for entry in view.study.entries
            if entry.spec.num_replicas in cases
        )
        plan = view.study.plan.model_copy(update={"program_code": {"": {"a": "b"}}})
        study = dataclasses.replace(view.study, plan=plan, entries=tuple(entries))
        return dataclasses.replace(view, study=study)

    return shown


DEFAULTS = {
    "step_sec": 0.1,
    "said_sec": 0.1,
    "number": STEPS,
    "busy": None,
    "of": Evidence.WINDOW,
    "advances": (),
    "duration_sec": 1e9,
    "is_oversubscribed": False,
    "device": "cpu",
}


def trial(entry, program, **fields):
    """Returns a trial whose lines came a step apart, and say another time of it."""
    of = SimpleNamespace(**DEFAULTS | fields)
    rank = {"window_start_ns": 0, "window_end_ns": STEPS * of.step_sec * 1e9}
    rank["warmup_step_time_sec"] = ()
    readings = {"evidence": of.of, "busy_cores": of.busy, "num_readings": of.number}
    cores = {"is_oversubscribed": of.is_oversubscribed}
    changes = {
        "result": {
            "readings": SimpleNamespace(**readings, advances=of.advances, remarks=()),
            "ranks": (entry.result.ranks[0].model_copy(update=rank),),
            "window_sec": STEPS * of.said_sec,
            "num_measured_steps": STEPS,
        },
        "status": {"duration_sec": of.duration_sec},
        "env": {"placement": entry.trial.env.placement.model_copy(update=cores)},
    }
    records = {
        name: getattr(entry.trial, name).model_copy(update=update)
        for name, update in changes.items()
    }
    spec = {"program": program, "device": of.device}
    spec = entry.spec.model_copy(update=spec)
    records = dataclasses.replace(entry.trial, **records)
    return dataclasses.replace(entry, spec=spec, trial=records)


def doubt(view):
    """Returns what the first screen says of the clock; empty for nothing."""
    said = verdict(view).sentences
    return "".join(of for of in said if of.startswith("The harness's clock"))


def letter(view):
    graded = caveats_of(view)[0]
    assert "Evidence" == graded.name
    assert bool(doubt(view)) == ("harness's clock" in graded.reason)
    return re.match("grade ([A-D]) of A to D: ", graded.reason)[1]


@settings(max_examples=200, deadline=None)
@given(
    st.floats(1e-3, 10),
    st.integers(1, 500),
    st.sampled_from(["steps", "examples", "declared", "each"]),
    st.floats(1, 1.25),
    st.floats(2, 1e4) | st.floats(1e-4, 0.5),
)
def test_the_clock_of_the_harness_is_a_witness(
    printed, step_sec, per_line, how, overhead, wrong
):
    """An honest program is confirmed, however it counts; a claim that is off is not."""
    per_line = 1 if how == "each" else per_line
    counted = {"steps": STEPS * per_line, "examples": STEPS * per_line * 8}.get(how, 3)
    every = per_line if how == "declared" else None

    def found(said_sec):
        line_sec = step_sec * per_line * overhead
        one = {"step_sec": line_sec, "said_sec": said_sec, "advances": (counted, 7)}
        return printed({1: one}, every)

    assert "B" == letter(found(step_sec))
    claimed = found(step_sec * overhead * wrong)
    is_as_each = 1 / 1.5 <= per_line / wrong <= 1.5
    steps = per_line / wrong * STEPS
    is_chance = any(1 / 1.5 <= steps / n <= 1.5 for n in (7, 7 / 8, 3, 3 / 8))
    is_chance |= how in ("steps", "examples") and any(
        1 / 1.5 <= steps / n <= 1.5 for n in (counted, counted / 8)
    )
    if every is not None or not (is_as_each or is_chance):
        assert letter(claimed) in ("C", "D")


@pytest.mark.parametrize(
    ("line_sec", "said_sec", "grade", "words"),
    [
        (0.1, 0.0001, "C", "does not confirm the rates: with 2 replicas a line came"),
        (0.1, 0.1 / 3600, "C", "a rate per hour"),
        (0.3, 0.1, "C", "If a line is of 3.00 steps, write [every N] behind"),
        (0.1, 0.26, "D", "contradicts the rates: .* a running average"),
        (0.1, 100.0, "D", "Then no figure is right; see --metric"),
    ],
)
def test_a_claim_beside_the_clock_is_said_in_words(
    printed, line_sec, said_sec, grade, words
):
    found = printed({1: {}, 2: {"step_sec": line_sec, "said_sec": said_sec}})

    assert grade == letter(found)
    text = doubt(found)
    assert re.search(words.replace("[", r"\["), text), text


def test_steps_that_take_longer_than_their_program_are_none(printed):
    long, short = (
        printed({1: {"said_sec": of, "of": Evidence.ROWS, "duration_sec": 2.0}})
        for of in (1.0, 0.1)
    )

    assert "D" == letter(long)
    assert "C" == letter(short)
    assert "longer than the program ran" in doubt(long)


@pytest.mark.parametrize(
    ("two", "one", "said"),
    [
        # It keeps as many cores busy as with one replica.
        (
            {"busy": 1.02},
            {"busy": 1.0},
            "kept 1.0 cores busy, with 1 replica 1.0: does it use the replicas",
        ),
        # Not where there are no more, or none is busy.
        ({"busy": 1.9}, {"busy": 1.0}, ""),
        ({"busy": 1.0, "is_oversubscribed": True}, {"busy": 1.0}, ""),
        ({"busy": 0.1}, {"busy": 1.0}, ""),
        ({"busy": 1.0, "device": "gpu"}, {"busy": 1.0}, ""),
        # The rate of one replica stands for half of the time between two numbers.
        (
            {"said_sec": 0.2},
            {},
            "accounts for 2.0 times as much.*Then use throughput_per_replica\\.$",
        ),
        ({}, {}, ""),
        # All processes print the rate of all, or each its own.
        (
            {"said_sec": 0.2, "number": 2 * STEPS},
            {},
            "printed 2 times as many numbers as with 1 replica: do all its pro",
        ),
        (
            {"said_sec": 0.4, "number": 2 * STEPS},
            {},
            "each process print its own\\? Then the throughput is 2 times what",
        ),
        ({"said_sec": 0.3}, {}, ""),
    ],
)
def test_what_a_program_prints_is_doubted(printed, two, one, said):
    view = printed({1: one, 2: two})
    found = [of for of in limits(view) if of.startswith("With 2 replicas the p")]

    assert bool(said) == bool(found)
    assert re.search(said, "".join(found))
