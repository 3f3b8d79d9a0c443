"""Caveats: each level with its reason, and the words of the verdict.

A sentence of the first screen or of a gate is printed if it is worth what it claims.
"""

import csv
import dataclasses
import itertools
import math
import pathlib
import re

import gate_claims
import noise_models
import page_claims
import pytest
import study_files
from command_lines import plain
from study_files import with_blocks, with_environments
from synthetic import Lost, interleaving_shape

from reports import caveats_of, render_section, verdict, view_store
from results import Store

QUIET = {"foreign_cpu_fraction": 0.0}


def _text(view):
    return plain(verdict(view).text)


def _caveat(view, name):
    """The level of a caveat, and its reason."""
    (found,) = [of for of in caveats_of(view) if of.name == name]
    return found.level.value, plain(found.reason)


def test_a_quiet_interleaved_study_with_an_aa_control_is_reliable(interleaved):
    level, reason = _caveat(interleaved, "Quiet machine")
    study = with_blocks(interleaved.study, lambda _: QUIET)
    quiet = dataclasses.replace(interleaved, study=study)
    found = {of.name: of.level.value for of in caveats_of(quiet)}

    assert "caution" == level
    assert "load was not recorded in" in reason
    assert {"Design", "Resolution", "Drift"} < set(found)
    for name in ("Sample", "Quiet machine", "Failures", "Cores"):
        assert "ok" == found[name], name
    assert re.search(
        r", measured twice: \d\.\d\d\N{MULTIPLICATION SIGN} \[\d\.\d+, \d\.\d+\]"
        r" \(n = 4; con",
        _caveat(quiet, "Design")[1],
    )


def _with_halves(interleaved, half):
    """Gives every efficiency an interval of so much to either side."""
    ends = {"value": 0.79, "low": 0.79 * (1 - half), "high": 0.79 * (1 + half)}
    points = tuple(
        dataclasses.replace(
            point,
            efficiency=point.efficiency
            and dataclasses.replace(point.efficiency, **ends),
        )
        for point in interleaved.points
    )
    return dataclasses.replace(interleaved, points=points)


@pytest.mark.parametrize(
    ("half", "level"), [(0.02, "ok"), (0.11, "caution"), (0.3, "bad")]
)
def test_a_study_that_resolves_little_is_not_reliable(interleaved, half, level):
    view = _with_halves(interleaved, half)
    found, reason = _caveat(view, "Resolution")

    assert level == found
    assert f"efficiencies within {100 * half:.0f} %" in reason
    assert (level == "ok") == ("resolution" not in _text(view))


@pytest.mark.parametrize(("every", "level"), [(0, "ok"), (10, "caution")])
def test_slow_blocks_that_typical_ones_hide_call_for_caution(
    tmp_path, synthetic, every, level
):
    """Every tenth block of two replicas takes four times as long: 30 % more time."""
    fields = {"modes": (synthetic.WEAK,), "num_rounds": 20, "repeats": 5}
    shape = synthetic.Shape(noise=0.002, **fields)
    store = synthetic.make_store(tmp_path, shape)
    for trial in store.trials():
        now_ns, blocks = 0, []
        for block in trial.result.blocks:
            is_slow = every and block.round_index % every == 5
            factor = 4 if is_slow and trial.spec.num_replicas == 2 else 1
            end_ns = now_ns + factor * (block.end_ns - block.start_ns)
            times = {"start_ns": now_ns, "end_ns": end_ns}
            blocks.append(block.model_copy(update=times))
            now_ns = end_ns
        result = trial.result.model_copy(update={"blocks": tuple(blocks)})
        store.write_result(trial.trial_id, result)
    found, reason = _caveat(view_store(store), "Resolution")
    said = re.findall(
        r"; of total time (\d+) % lower: some blocks are much slower$", reason
    )
    # 4 ** 0.1 of typical blocks, 1.3 of total time.
    expected = [100 * (1 - 4**0.1 / 1.3)] if every else []

    assert level == found, reason
    assert expected == pytest.approx([*map(int, said)], abs=2)


def test_an_aa_control_that_is_far_from_its_case_is_not_reliable(make):
    far = view_store(make(num_rounds=6, repeats=4, noise=0.15, aa_factor=1.12))
    view = _with_halves(far, 0.02)
    level, reason = _caveat(view, "Design")
    (ratio,) = re.findall(r"measured twice: ([\d.]+)\N{MULTIPLICATION SIGN}", reason)
    apart = abs(math.log(float(ratio)))

    assert "ok" == level
    assert 0.06 < apart < 0.2
    assert ("caution", f"equal programs are {100 * apart:.0f} % apart: coarse") == (
        _caveat(view, "Resolution")
    )


def test_trials_in_sequence_call_for_caution(sequence):
    assert "caution" == _caveat(sequence, "Design")[0]
    assert ("caution", "3 repetitions: wide intervals") == _caveat(sequence, "Sample")
    assert re.search(r" Caution: design, sample[\w, ]*\. ", _text(sequence))


def _with_environments(view, is_chosen, **fields):
    """Changes the environments of trials, by number and entry."""
    numbers = itertools.count()
    study = with_environments(
        view.study, lambda entry: fields if is_chosen(next(numbers), entry) else None
    )
    return dataclasses.replace(view, study=study)


def _every_second(number, _):
    return number % 2


# The canary of made studies takes 0.2 s.
SLOW = {"canary_after_sec": 0.4}


def test_a_large_drift_changes_the_words_of_the_verdict(sequence, interleaved):
    drifted = _with_environments(sequence, _every_second, **SLOW)
    one_reading = _with_environments(interleaved, _every_second, **SLOW)
    repetition = _with_environments(
        interleaved,
        lambda _, entry: entry.spec.repetition_index == 1,
        canary_before_sec=0.4,
        **SLOW,
    )
    level, reason = _caveat(repetition, "Drift")

    assert "bad" == _caveat(drifted, "Drift")[0]
    assert re.search(r" Not reliable: drift\. ", _text(drifted))
    assert _text(drifted).endswith("Next: repeat on a quiet machine.")
    assert "ok" == _caveat(one_reading, "Drift")[0]
    assert "caution" == level
    assert reason.startswith("speed of the machine")


def test_the_drift_of_the_caveat_is_that_of_the_section_on_the_machine(interleaved):
    disturbed = _with_environments(
        interleaved, lambda number, _: number == 0, canary_after_sec=0.6
    )
    moved = re.search(r"moved by ([\d.]+ %)", _caveat(disturbed, "Drift")[1])
    machine = plain(render_section("machine", disturbed))

    assert f"between runs, the speed of the machine moved by {moved[1]}" in machine
    assert re.search(r"single readings by up to [12]\d\d %", machine)


def test_discarded_blocks_are_counted(make):
    view = view_store(make(num_rounds=12, repeats=4, discarded_share=0.04))
    blocks = [block for entry in view.study.planned for block in entry.blocks]
    num_discarded = sum(not block.is_valid for block in blocks)
    told = f"{num_discarded} of {len(blocks)} blocks discarded, "

    assert num_discarded > 0
    assert _caveat(view, "Quiet machine")[1].startswith(told)


def test_a_loud_machine_and_two_environments_are_bad(sequence):
    loud = _with_environments(
        sequence, _every_second, foreign_cpu_fraction=0.4, fingerprint="other"
    )
    level, reason = _caveat(loud, "Quiet machine")

    assert "bad" == level
    assert "40 %" in reason
    assert ("bad", "2 different environments") == _caveat(loud, "Drift")
    assert re.search(r" Not reliable: quiet machine, drift\. ", _text(loud))


def test_failures_and_oversubscription_are_caveats(broken):
    view = view_store(broken)
    (failed, why_failed), (cores, why_cores) = (
        _caveat(view, name) for name in ("Failures", "Cores")
    )

    assert "caution" == failed == cores
    assert re.fullmatch(r"\d+ of \d+ trials gave no number \(.+\)", why_failed)
    assert "oversubscribed at 4 replicas" in why_cores


def test_the_method_says_where_caveats_begin(interleaved, sequence):
    of_interleaved, of_sequence = (
        plain(render_section("method", view)) for view in (interleaved, sequence)
    )

    for text, said in (
        (of_interleaved, "caution below 4 runs, bad with one"),
        (
            of_interleaved,
            "more than 10 % of the blocks are discarded, bad if a case has no other",
        ),
        (of_interleaved, "moved by more than 10 %, bad if it changed"),
        (of_sequence, "more than 5 % of the CPU time in any trial"),
        (of_sequence, "moved by more than 10 %, bad above 25 % or if it changed"),
        (of_sequence, "any trial gave no number, bad above 20 %"),
        # What ``test_simulations.py`` finds.
        (of_sequence, "contains the true value only 74 % of the time"),
        (of_sequence, "about 90 % at n = 3 if the noise is strongly skewed"),
    ):
        assert said in text


TABLES = pathlib.Path(__file__).parents[3] / "docs/claims"


def _rows(store):
    view = view_store(store)
    judged = verdict(view)
    return {page_claims.row_of(plain(text)) for text in judged.sentences}


@pytest.mark.parametrize("name", study_files.PUBLISHED)
def test_published_studies_say_only_what_has_a_row(name):
    found = _rows(Store.open(study_files.published(name)))

    assert {page_claims.INTERVAL, page_claims.FASTER} & found


def test_made_studies_say_only_what_has_a_row(make, broken):
    two = ("in_graph", "tf_mirrored")
    nothing = {"in_graph": Lost(exposed_communication=0.0, input=0.0)}
    _rows(broken)
    for shape in (
        interleaving_shape(),
        interleaving_shape(backends=two),
        interleaving_shape(backends=(*two, "single"), repeats=5),
        interleaving_shape(lost={"in_graph": Lost(exposed_communication=0.02)}),
        interleaving_shape(lost=nothing),
        interleaving_shape(repeats=1),
        interleaving_shape(replicas=(1,), controls=()),
    ):
        _rows(make(shape))
    for fields in (
        {},
        {"repeats": 1},
        {"repeats": 1, "num_rounds": 8},
        {"backends": two[:1]},
        {"noise": 0.0},
    ):
        _rows(make(**fields))


def _table(name):
    with (TABLES / name).open(encoding="utf-8", newline="") as file:
        heads, *rows = csv.reader(file)
    return heads, rows


def test_the_tables_have_every_row():
    rows = {row for _, row in page_claims.SENTENCES if row is not None}
    rows |= {*page_claims.ROWS.values()}
    heads, gates = _table("gates-by-noise.csv")

    assert set() == rows - {name for name, *_ in _table("pages.csv")[1]}
    assert [*noise_models.MODELS] == [model for model, *_ in gates]
    for column, claim in enumerate(gate_claims.CLAIMS, start=1):
        assert heads[column].startswith(claim.head)
        for cells in gates:
            row = gate_claims.Row(
                claim=claim,
                model=cells[0],
                share=float(cells[column]),
                repetitions=0.0,
                num_gates=1000,
            )
            assert not row.is_broken, (row.model, claim.head)
