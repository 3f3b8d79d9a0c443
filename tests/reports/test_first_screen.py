"""The first screen: verdict in few words, marks of trust, one figure, and the title."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
from relay_study import ALL, Lost, RelayShape
from relay_study import make_store as make_relay

from reports import brief, build, formats, marks, names, next_step
from reports.figures import hero, labels
from reports.marks import Level
from reports.view import view_store
from results.records import ScalingMode, TrialStatus

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from reports.view import View
    from results.store import Store
    from results.study import Entry

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG


def _plain(text: str) -> str:
    return text.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")


def _text(view: View) -> str:
    return _plain(brief.judge(view).text)


def _first_screen(store: Store) -> str:
    page = build.build_report(store)
    return page.partition('<section id="verdict"')[2].partition("</section>")[0]


def _mark(view: View, name: str) -> marks.Mark:
    (found,) = [mark for mark in marks.of_view(view) if mark.name == name]
    return found


@pytest.fixture(scope="module")
def sequence(tmp_path_factory: pytest.TempPathFactory, synthetic: Any) -> View:
    """Two backends in both modes, three repetitions one after another."""
    return view_store(synthetic.make_store(tmp_path_factory.mktemp("sequence")))


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory, synthetic: Any) -> View:
    """The same in turns, with a twin."""
    shape = synthetic.Shape(num_rounds=6, repeats=4, twin_factor=1.0)
    return view_store(synthetic.make_store(tmp_path_factory.mktemp("relay"), shape))


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A relay with all controls."""
    shape = RelayShape(lost={"in_graph": Lost(contention=0.002)}, controls=ALL)
    return make_relay(tmp_path_factory.mktemp("controlled"), shape)


def test_the_verdict_says_how_well_at_which_number_weak_and_strong(
    relay: View,
) -> None:
    """Each number with its interval, then the comparison and what to do next."""
    text = _text(relay)
    number = r"[\d.]+ % \([\d.]+\N{EN DASH}[\d.]+\)"

    assert re.match(
        rf"[^:]*: in_graph keeps {number} efficiency on 2 replicas in weak and "
        rf"{number} in strong scaling\. ",
        text,
    )
    assert re.search(r"tf_mirrored", text)
    assert "Next: " in text


def test_the_verdict_names_the_largest_cause_with_its_share(controlled: Store) -> None:
    """10 ms of communication in a step of 66 ms; from the controls."""
    text = _text(view_store(controlled))

    assert re.search(
        r"Largest loss: waiting for communication, 1[456] % of a step\.", text
    )
    assert text.endswith("Next: try larger batches per replica.")


def test_a_machine_without_more_cores_is_not_given_more_replicas(
    relay: View,
) -> None:
    """It has two, and both are used; one replica leaves one."""
    points = [p for p in relay.points_of(STRONG, "in_graph") if p.trial_ids]

    assert brief._wider(relay, points) == "a machine with more cores"
    assert brief._wider(relay, points[:1]) == "more replicas, of 2 cores"


def test_a_cause_that_was_not_recorded_is_not_guessed(sequence: View) -> None:
    """Trials in sequence have no turns and no controls."""
    assert "What limits it was not recorded." in _text(sequence)


def test_every_verdict_has_at_most_45_words(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """Whatever was measured, and with everything to say."""
    shapes = [
        synthetic.BROKEN,
        synthetic.Shape(noise=0.5),
        synthetic.Shape(repeats=1, modes=(STRONG,)),
        synthetic.Shape(
            backends=("multi_worker_in_graph", "tf_multi_worker", "async", "single"),
            replicas=(1, 2, 4, 8),
            num_rounds=4,
            twin_factor=1.3,
            void_share=0.2,
        ),
        synthetic.Shape(num_rounds=8, void_share=0.4),
        synthetic.Shape(replicas=(2,)),
    ]
    for number, shape in enumerate(shapes):
        view = view_store(synthetic.make_store(tmp_path / str(number), shape))
        text = brief.judge(view).text

        assert 5 <= brief.num_words(text) <= brief.MOST_WORDS, text


def test_if_all_trials_failed_the_commonest_reason_is_the_headline(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """Escaped, with how often it came; and the figure vanishes."""
    keys = itertools.product(
        ("in_graph", "tf_mirrored"), (WEAK, STRONG), (1, 2), range(3)
    )
    statuses = dict.fromkeys(keys, TrialStatus.TIMEOUT)
    statuses["in_graph", WEAK, 1, 0] = TrialStatus.FAILED
    store = synthetic.make_store(tmp_path, synthetic.Shape(statuses=statuses))
    text = _text(view_store(store))
    screen = _first_screen(store)

    assert re.fullmatch(
        r"Nothing was measured: no end after 300 s; process tree was killed "
        r"\(1[67] of 18 planned trials\)\.",
        text,
    )
    assert "<svg" not in screen
    assert "nothing measured" in screen


def test_sections_without_content_vanish(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """No heading stands above a sentence that there is nothing."""
    shape = synthetic.Shape(backends=("in_graph",), is_evaluated=False)
    page = build.build_report(synthetic.make_store(tmp_path, shape))
    sections = set(re.findall(r'<section id="([\w-]+)"', page))

    assert {"verdict", "scaling", "summary", "coverage"} <= sections
    assert not sections & {"backends", "learning", "quality", "counts", "lost-time"}
    assert sections >= set(re.findall(r'<li><a href="#([\w-]+)"', page))


def test_the_title_is_a_question_in_plain_words(relay: View) -> None:
    """With the display name of the workload, and the machine."""
    title = names.title(relay)

    assert re.fullmatch(
        r"ResNet-50 on \d+ cores? of an? .+: how well does it scale\?", title
    )
    assert "(R)" not in title


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("AMD EPYC", "AMD EPYC"),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "Intel Xeon E5-2680 v4"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "AMD Ryzen 9 7950X"),
        ("CPU", "CPU"),
    ],
)
def test_processors_lose_their_trade_marks(model: str, shown: str) -> None:
    """A model that is nothing else stays."""
    assert shown == names.processor(model)


def test_metrics_have_display_names() -> None:
    """Known ones by a table, others by their words."""
    assert names.metric("top_1") == "Top-1 accuracy"
    assert names.metric("rate_of_mine") == "Rate of mine"
    assert names.workload("resnet50") == "ResNet-50"
    assert names.workload("mine") == "mine"


def test_a_quiet_relay_with_a_twin_is_reliable(relay: View) -> None:
    """Every mark is ok, and the verdict says so in one word."""
    found = {mark.name: mark.level for mark in marks.of_view(relay)}

    assert set(found) == {
        "Design",
        "Sample",
        "Quiet machine",
        "Drift",
        "Failures",
        "Cores",
    }
    for name in ("Sample", "Quiet machine", "Failures", "Cores"):
        assert found[name] is Level.OK, name


def test_trials_in_sequence_call_for_caution(sequence: View) -> None:
    """Drift is in their ratios, and three repetitions have wide intervals."""
    design, sample = _mark(sequence, "Design"), _mark(sequence, "Sample")

    assert design.level is Level.CAUTION
    assert sample == marks.Mark(
        name="Sample", level=Level.CAUTION, reason="3 repetitions: wide intervals"
    )
    assert re.match(r"With caution \(design, sample[\w, ]*\): ", _text(sequence))


def _with_environments(
    view: View, choose: Callable[[Entry], bool] | None = None, **fields: Any
) -> View:
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


def test_a_large_drift_changes_the_words_of_the_verdict(
    sequence: View, relay: View
) -> None:
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


def test_a_loud_machine_and_two_environments_are_bad(sequence: View) -> None:
    """Both are named in the verdict."""
    loud = _with_environments(sequence, foreign_cpu_fraction=0.4, fingerprint="other")

    assert _mark(loud, "Quiet machine").level is Level.BAD
    assert "40 %" in _plain(_mark(loud, "Quiet machine").reason)
    assert _mark(loud, "Drift").reason == "2 different environments"
    assert re.match(r"Not reliable \(quiet machine, drift\): ", _text(loud))


def test_failures_and_oversubscription_are_marked(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """With how many, and at which numbers of replicas."""
    view = view_store(synthetic.make_store(tmp_path, synthetic.BROKEN))
    failures, cores = _mark(view, "Failures"), _mark(view, "Cores")

    assert failures.level is Level.CAUTION
    assert re.fullmatch(r"\d+ of \d+ trials gave no number", failures.reason)
    assert cores.level is Level.CAUTION
    assert "oversubscribed at 4 replicas" in cores.reason


def test_more_generations_are_calculated_from_the_spread(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """An inconclusive comparison says how many would settle it."""
    shape = synthetic.Shape(noise=0.3, num_rounds=4, repeats=4)
    view = view_store(synthetic.make_store(tmp_path, shape))
    item = next(c for c in view.comparisons if c.ratio and not c.ratio.excludes(1.0))
    text = _plain(next_step.for_comparison(view, item))
    need = next_step.to_exclude(view, item.ratio, 1.0)

    assert re.fullmatch(
        r"(\d+ more generations? \([\d ]+ min\)|over 200 generations)"
        r" to rank the backends",
        text,
    )
    assert need is not None
    assert need.num_more is None or need.num_more >= 1
    assert next_step.to_exclude(view, item.ratio, item.ratio.value * 50).num_more == 1


def test_the_figure_is_linear_from_zero_and_labels_its_lines(relay: View) -> None:
    """All in words too; labels name backend and mode."""
    drawn = hero.draw(relay)
    assert drawn is not None

    assert "in_graph, weak: 100" in drawn
    for text in ("in_graph", "tf_mirrored", "replicas", ">0"):
        assert text in drawn


def test_the_ceiling_is_that_of_programs_that_never_communicate(
    controlled: Store,
) -> None:
    """Two programs at 52 ms beside one at 50 ms: 96 %."""
    (found,) = hero.ceilings(view_store(controlled))

    assert found.num_replicas == 2
    assert found.value == pytest.approx(50 / 52, rel=0.02)
    assert "Short line: ceiling" in _first_screen(controlled)


def test_a_panel_has_at_most_seven_lines(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """The others are counted in the caption."""
    backends = ("in_graph", "tf_mirrored", "multi_worker", "tf_multi_worker", "async")
    store = synthetic.make_store(tmp_path, synthetic.Shape(backends=backends))

    assert len(hero.lines(view_store(store))) == 10
    assert "3 more lines below" in _first_screen(store)


def test_labels_never_overlap_and_stay_within() -> None:
    """They move as little as is needed, in the order of their lines."""
    places = [0.9, 0.91, 0.92, 0.2, 0.99]
    heights = [0.1, 0.1, 0.1, 0.1, 0.2]
    moved = labels.spread(places, heights, 0.0, 1.0)
    order = sorted(range(5), key=lambda k: places[k])

    assert moved[3] == pytest.approx(0.2)
    for below, above in itertools.pairwise(order):
        gap = moved[above] - moved[below]
        assert gap >= (heights[above] + heights[below]) / 2 - 1e-9
    assert max(m + h / 2 for m, h in zip(moved, heights, strict=True)) <= 1 + 1e-9
    assert min(m - h / 2 for m, h in zip(moved, heights, strict=True)) >= -1e-9


def test_long_names_leave_room_for_the_lines(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """The longest backend of the catalogue is whole, a longer one is cut."""
    shape = synthetic.Shape(backends=("multi_worker_in_graph", "x" * 80))
    drawn = hero.draw(view_store(synthetic.make_store(tmp_path, shape)))
    assert drawn is not None
    labels_of = drawn.partition("</desc>")[2]

    assert ">multi_worker_in_graph<" in labels_of
    assert f">{'x' * 23}\N{HORIZONTAL ELLIPSIS}<" in labels_of


def test_damaged_figures_do_not_break_the_verdict(relay: View) -> None:
    """An efficiency of 1e300, and an interval from 0."""
    (point,) = [p for p in relay.points_of(WEAK, "in_graph") if p.efficiency]
    assert point.efficiency is not None
    broken = dataclasses.replace(point.efficiency, value=1e300, low=0.0, high=1e301)
    view = dataclasses.replace(
        relay,
        points=tuple(
            dataclasses.replace(p, efficiency=broken, speedup=broken)
            if p is point
            else p
            for p in relay.points
        ),
    )

    assert brief.num_words(brief.judge(view).text) <= brief.MOST_WORDS
    assert hero.draw(view) is not None
    assert next_step.to_exclude(view, broken, 1.0) is None


def test_a_relay_has_generations(relay: View, sequence: View) -> None:
    """Captions say what the study has."""
    assert (relay.repetition, sequence.repetition) == ("generation", "repetition")
    assert "repetitions" not in _first_screen(relay.store)
