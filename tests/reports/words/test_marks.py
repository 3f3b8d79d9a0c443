"""The marks of trust: each level with its reason, and the words of the verdict."""

import dataclasses
import re

import pytest
from changed_study import with_results, with_turns

from reports.page.sections import coverage, overview
from reports.view.view import view_store
from reports.words import brief, formats, marks
from reports.words.marks import Level
from results.figures import relay as relay_counts
from results.figures import scaling
from results.records.models import ScalingMode
from results.study.cases import load_study

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG


def _plain(text):
    return text.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")


def _text(view):
    return _plain(brief.judge(view).text)


def _mark(view, name):
    (found,) = [mark for mark in marks.of_view(view) if mark.name == name]
    return found


def test_a_quiet_relay_with_a_twin_is_reliable(relay):
    """Every mark is ok but for load that was not recorded, which is no quiet."""
    unknown = _mark(relay, "Quiet machine")
    study = with_turns(relay.study, lambda _: {"foreign_cpu_fraction": 0.0})
    relay = dataclasses.replace(relay, study=study)
    found = {mark.name: mark.level for mark in marks.of_view(relay)}

    assert unknown.level is Level.CAUTION
    assert "load was not recorded in" in unknown.reason

    assert set(found) == {
        "Design",
        "Sample",
        "Resolution",
        "Quiet machine",
        "Drift",
        "Failures",
        "Cores",
    }
    for name in ("Sample", "Quiet machine", "Failures", "Cores"):
        assert found[name] is Level.OK, name
    assert re.search(
        rf"one, measured twice: \d\.\d\d{formats.TIMES} \[\d\.\d+, \d\.\d+\]$",
        _plain(_mark(relay, "Design").reason),
    )


@pytest.mark.parametrize(
    ("half", "level"), [(0.02, Level.OK), (0.11, Level.CAUTION), (0.3, Level.BAD)]
)
def test_a_study_that_resolves_little_is_not_reliable(relay, half, level):
    """79 % [70, 88] is an interval of 11 % to either side."""
    view = _with_halves(relay, half)
    mark = _mark(view, "Resolution")

    assert level is mark.level
    assert f"efficiencies within {100 * half:.0f} %" in _plain(mark.reason)
    assert (level is Level.OK) == ("resolution" not in _text(view))


def _with_halves(relay, half):
    points = tuple(
        dataclasses.replace(
            point,
            efficiency=dataclasses.replace(
                point.efficiency,
                value=0.79,
                low=0.79 * (1 - half),
                high=0.79 * (1 + half),
            ),
        )
        if point.efficiency is not None
        else point
        for point in relay.points
    )
    return dataclasses.replace(relay, points=points)


@pytest.mark.parametrize(("every", "level"), [(0, Level.OK), (10, Level.CAUTION)])
def test_slow_turns_that_typical_ones_hide_call_for_caution(
    tmp_path, synthetic, every, level
):
    """Every tenth turn of two replicas takes four times as long: 30 % more time."""
    shape = synthetic.Shape(modes=(WEAK,), num_rounds=20, repeats=5, noise=0.002)
    study = load_study(synthetic.make_store(tmp_path, shape))

    def change(entry):
        now_ns, turns = 0, []
        for turn in entry.result.turns:
            is_slow = every and turn.round_index % every == 5
            factor = 4 if is_slow and entry.spec.num_replicas == 2 else 1
            end_ns = now_ns + factor * (turn.end_ns - turn.start_ns)
            turns.append(turn.model_copy(update={"start_ns": now_ns, "end_ns": end_ns}))
            now_ns = end_ns
        return {"turns": tuple(turns)}

    made = with_results(study, change)
    view = dataclasses.replace(
        view_store(synthetic.make_store(tmp_path / "again", shape)),
        study=made,
        points=scaling.points(made),
    )
    mark = _mark(view, "Resolution")
    point = next(p for p in view.points if p.num_replicas == 2)
    hidden = scaling.hidden_by_slow_turns(point.case, point.baseline)

    assert level is mark.level, mark.reason
    # 4 ** 0.1 of typical turns, 1.3 of total time.
    expected = 1 - 4**0.1 / 1.3 if every else 0.0
    assert hidden == pytest.approx(expected, abs=0.02)
    is_said = re.search(
        r"; of total time 1\d % lower: some turns are much slower$",
        _plain(mark.reason),
    )
    assert bool(is_said) == bool(every)


def test_a_twin_that_is_far_from_its_case_is_not_reliable(relay, monkeypatch):
    """Its interval may include 1 because it is wide."""
    twin = relay_counts.twin_of(relay.study)
    assert twin is not None
    ratio = dataclasses.replace(twin.ratio, value=1.12, low=0.97, high=1.29)
    far = dataclasses.replace(twin, ratio=ratio)
    monkeypatch.setattr(relay_counts, "twin_of", lambda _: far)
    view = _with_halves(relay, 0.02)
    mark = _mark(view, "Resolution")

    assert (Level.CAUTION, Level.OK) == (mark.level, _mark(view, "Design").level)
    assert "equal programs are 11 % apart: coarse" == _plain(mark.reason)


def test_rates_say_when_they_were_measured(relay):
    """Noise that lasts ten minutes is in a rate, and in no interval of it."""
    note = brief.judge(relay).note

    assert re.search(
        r"; ratios hold for this machine\. Rates hold for this machine from 2025-01-01"
        r" 00:00 to 00:\d\d UTC\.$",
        note,
    )


def test_trials_in_sequence_call_for_caution(sequence):
    """Drift is in their ratios, and three repetitions have wide intervals."""
    design, sample = _mark(sequence, "Design"), _mark(sequence, "Sample")

    assert design.level is Level.CAUTION
    assert sample == marks.Mark(
        name="Sample", level=Level.CAUTION, reason="3 repetitions: wide intervals"
    )
    assert re.match(r"With caution \(design, sample[\w, ]*\): ", _text(sequence))


def _with_environments(view, choose=None, **fields):
    """Changes the environment of every second trial, or of those that are chosen."""
    entries = []
    for number, entry in enumerate(view.study.entries):
        changed = entry
        is_chosen = choose(entry) if choose else number % 2
        if is_chosen and entry.trial is not None and entry.trial.env is not None:
            env = entry.trial.env.model_copy(update=fields)
            changed = dataclasses.replace(
                entry, trial=dataclasses.replace(entry.trial, env=env)
            )
        entries.append(changed)
    study = dataclasses.replace(view.study, entries=tuple(entries))
    return dataclasses.replace(view, study=study)


def test_a_large_drift_changes_the_words_of_the_verdict(sequence, relay):
    """In sequence it is in the ratios; in turns it cancels, and calls for caution."""
    (before,) = {
        entry.trial.env.canary_before_sec
        for entry in sequence.study.planned[:1]
        if entry.trial is not None and entry.trial.env is not None
    }
    assert before is not None
    slow = {"canary_after_sec": 2 * before}
    drifted = _with_environments(sequence, **slow)

    assert _mark(drifted, "Drift").level is Level.BAD
    assert re.match(r"Not reliable \(drift\): ", _text(drifted))
    assert _text(drifted).endswith("Next: repeat on a quiet machine.")
    one_reading = _with_environments(relay, **slow)
    assert _mark(one_reading, "Drift").level is Level.OK
    generation = _with_environments(
        relay,
        lambda entry: entry.spec.repetition_index == 1,
        canary_before_sec=2 * before,
        **slow,
    )
    assert _mark(generation, "Drift").level is Level.CAUTION
    assert _plain(_mark(generation, "Drift").reason).startswith("speed of the machine")


def test_the_drift_of_the_mark_is_that_of_the_section_on_the_machine(relay):
    """Of medians over a generation; single readings move further, and say so."""
    (first, *_) = relay.study.planned
    before = first.trial.env.canary_before_sec
    disturbed = _with_environments(
        relay,
        lambda entry: entry.trial_id == first.trial_id,
        canary_after_sec=3 * before,
    )
    moved = re.search(r"moved by ([\d.]+ %)", _plain(_mark(disturbed, "Drift").reason))
    assert moved is not None
    section = _plain(coverage.render_machine(disturbed))

    assert (
        f"between generations, the speed of the machine moved by {moved[1]}" in section
    )
    assert re.search(r"single readings by up to [12]\d\d %", section)


def test_void_turns_are_counted(tmp_path, synthetic):
    shape = synthetic.Shape(num_rounds=12, repeats=4, void_share=0.04)
    view = view_store(synthetic.make_store(tmp_path, shape))
    counts = relay_counts.count_turns(view.study)
    mark = _mark(view, "Quiet machine")

    assert counts.num_void > 0
    told = f"{counts.num_void} of {counts.num_turns} blocks discarded; load was not"
    assert mark.reason.startswith(told)


def test_a_loud_machine_and_two_environments_are_bad(sequence):
    loud = _with_environments(sequence, foreign_cpu_fraction=0.4, fingerprint="other")

    assert _mark(loud, "Quiet machine").level is Level.BAD
    assert "40 %" in _plain(_mark(loud, "Quiet machine").reason)
    assert _mark(loud, "Drift").reason == "2 different environments"
    assert re.match(r"Not reliable \(quiet machine, drift\): ", _text(loud))


def test_failures_and_oversubscription_are_marked(tmp_path, synthetic):
    view = view_store(synthetic.make_store(tmp_path, synthetic.BROKEN))
    failures, cores = _mark(view, "Failures"), _mark(view, "Cores")

    assert failures.level is Level.CAUTION
    assert re.fullmatch(r"\d+ of \d+ trials gave no number", failures.reason)
    assert cores.level is Level.CAUTION
    assert "oversubscribed at 4 replicas" in cores.reason


def test_the_method_says_where_the_marks_turn(relay, sequence):
    """A reader can look up how much drift, or how many void turns, are too many."""
    of_relay, of_sequence = (
        _plain(overview.render_method(view)) for view in (relay, sequence)
    )

    assert "caution below 4 generations, bad with one" in of_relay
    assert (
        "more than 10 % of the turns are void, bad if a case has no other" in of_relay
    )
    assert "moved by more than 10 %, bad if it changed" in of_relay
    assert "more than 5 % of the CPU time in any trial" in of_sequence
    assert "moved by more than 10 %, bad above 25 % or if it changed" in of_sequence
    assert "any trial gave no number, bad above 20 %" in of_sequence
