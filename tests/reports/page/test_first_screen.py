"""The first screen: verdict in few words, marks of trust, one figure, and the title."""

import dataclasses
import re

import pytest
from plain_text import plain
from synthetic import Lost, every, relay_shape

from reports.charts import over_replicas
from reports.exports import exports
from reports.page import build
from reports.page.sections import overview
from reports.site.card import make_card
from reports.view import view_store
from reports.words import brief, formats, names, next_step
from results.records.models import ScalingMode, TrialStatus

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG
PERCENT = r"[\d.]+ % \[[\d.]+, [\d.]+\]"
RATIO = rf"[\d.]+{formats.TIMES} \[[\d.]+, [\d.]+\]"


def _text(view):
    return plain(brief.judge(view).text)


def _first_screen(store):
    return str(overview.render_verdict(view_store(store)))


def test_the_verdict_says_how_well_at_which_number_weak_and_strong(relay):
    judged = brief.judge(relay)
    text, screen = plain(judged.text), _first_screen(relay.store)
    (command,) = [text for text, is_typed in judged.next_parts if is_typed]

    assert re.match(
        rf"in_graph keeps {PERCENT} efficiency on 2 replicas in weak and "
        rf"{PERCENT} in strong scaling\. ",
        text,
    )
    assert re.search(rf"{RATIO} as fast as tf_mirrored", text)
    assert "Next: " in text
    assert plain(judged.note).startswith(
        "In brackets: 95 % intervals, n = 4 runs of fresh processes; ratios hold"
    )
    # Noise that lasts ten minutes is in a rate, and in no interval of it.
    assert re.search(
        r"; ratios hold for this machine\. Rates hold for this machine from 2025-01-01"
        r" 00:00 to 00:\d\d UTC\.$",
        plain(judged.note),
    )
    # What is typed is in code letters as a whole.
    assert command.startswith("python -m harness sweep ")
    assert command.endswith("--order interleaved --controls all")
    assert f"<code>{command}</code> measures what" in screen
    assert "repetitions" not in screen


def test_the_table_has_every_backend_and_mode_with_intervals(relay):
    rows = brief.judge(relay).rows
    number = r"[\d.]+ \[[\d.]+, [\d.]+\]"
    shown = _first_screen(relay.store)

    assert [(row.backend, row.mode, row.num_replicas) for row in rows] == [
        (backend, mode, 2)
        for mode in ("weak", "strong")
        for backend in ("in_graph", "tf_mirrored")
    ]
    assert brief.columns(relay)[3] == "images/s"
    for row in rows:
        assert re.fullmatch(number, plain(row.rate))
        assert re.fullmatch(PERCENT, plain(row.efficiency))
        assert plain(row.how_sure) == "4 runs"
        assert all(str(cell) in shown for cell in row)


BOTH = Lost(contention=0.008, exposed_communication=0.008)
# One replica waits for its input for a third of its step, and so do two.
EVEN = Lost(input_alone=0.015, input=0.015, exposed_communication=0.0)


@pytest.mark.parametrize(
    ("lost", "said", "not_said"),
    [
        # 10 ms of communication in a step of 62 ms; from the controls.
        (
            Lost(contention=0.002),
            (
                r"Most of what in_graph loses: waiting for communication, 1[567][\d.]*"
                r" % \[1[567][\d.]*, 1[567][\d.]*\] of a step\. .*"
                r"Next: try larger batches per replica\.$"
            ),
            (),
        ),
        (
            BOTH,
            r"in_graph loses [\d.]+ % \[.*\] of a step; no single cause is shown",
            ("Next: try",),
        ),
        (
            EVEN,
            r"in_graph keeps 99\.9",
            ("Most of what", "input", "of a step", "Next: try"),
        ),
    ],
    ids=["cause", "two causes", "nothing lost"],
)
def test_the_verdict_names_the_largest_cause_if_there_is_one(
    make, lost, said, not_said
):
    text = _text(view_store(make(relay_shape(lost={"in_graph": lost}))))

    assert re.search(said, text), text
    assert not [words for words in not_said if words in text]


def test_a_study_of_one_backend_says_that_it_ranks_none(make, sequence):
    statuses = every(TrialStatus.FAILED, backends=("tf_mirrored",))

    assert "Only in_graph was measured." in _text(
        view_store(make(backends=("in_graph",)))
    )
    assert "No comparison with tf_mirrored." in _text(
        view_store(make(statuses=statuses))
    )
    # A cause that was not recorded is not guessed: of trials in sequence.
    assert "Causes were not recorded." in _text(sequence)


def test_without_intervals_the_note_says_so(make):
    judged = brief.judge(view_store(make(repeats=1)))

    assert judged.note.startswith("n = 1 repetition: no intervals. Rates hold for ")
    assert "[" not in judged.text
    assert {"one repetition: no interval"} == {row.how_sure for row in judged.rows}


def test_of_one_generation_intervals_are_for_its_processes_only(make):
    judged = brief.judge(view_store(make(repeats=1, num_rounds=12)))

    assert {"these processes only"} == {row.how_sure for row in judged.rows}


def test_a_machine_without_more_cores_is_not_given_more_replicas(relay):
    """It has two, and both are used; one replica leaves one."""
    points = [p for p in relay.points_of(STRONG, "in_graph") if p.trial_ids]

    assert next_step._wider(relay, points) == "a machine with more cores"
    assert next_step._wider(relay, points[:1]) == "more replicas, of 2 cores"


def test_every_estimate_of_a_verdict_has_its_interval(make, broken):
    """Whatever was measured: no figure is written without what it is worth."""
    stores = [
        broken,
        make(noise=0.5),
        make(
            backends=("multi_worker_in_graph", "tf_multi_worker", "async", "single"),
            replicas=(1, 2, 4, 8),
            num_rounds=4,
            twin_factor=1.3,
            void_share=0.2,
        ),
        make(replicas=(2,)),
    ]
    for store in stores:
        view = view_store(store)
        judged, card = brief.judge(view), make_card(view, "any")
        lines = exports.as_markdown(store).splitlines()
        # The badge, the verdict and the table; limits are not figures of the study.
        shown = [line.replace("\\", "") for line in lines if not line.startswith("- ")]
        for text in map(plain, (judged.text, card.verdict, *shown)):
            figures = re.findall(rf"[\d.]+(?: %|{formats.TIMES})", text)
            if "|" not in text:
                assert text.count("[") == len(figures), text
            elif not re.search(r"\| [01]/\d+ \|$", text):  # so few have no interval
                assert text.count("[") >= len(figures), text
        for row in judged.rows:
            assert "[" in row.rate or "no interval" in row.how_sure


def test_if_all_trials_failed_the_commonest_reason_is_the_headline(make):
    """Escaped, with how often it came; and the figure vanishes."""
    statuses = every(TrialStatus.TIMEOUT)
    statuses["in_graph", WEAK, 1, 0] = TrialStatus.FAILED
    store = make(statuses=statuses)
    screen = _first_screen(store)

    assert re.fullmatch(
        r"Nothing was measured: no end after 300 s; process tree was killed "
        r"\(1[67] of 18 planned trials\)\. Next: fix this, then "
        r"python -m harness sweep --study resnet50-laptop-synthetic --retry failed\.",
        _text(view_store(store)),
    )
    assert "<svg" not in screen
    assert "nothing measured" in screen


def test_sections_without_content_vanish(make):
    fields = {"modes": (STRONG,), "repeats": 2, "is_evaluated": False}
    page = build.build_report(make(backends=("in_graph",), **fields))
    sections = set(re.findall(r'<section id="([\w-]+)"', page))

    assert {"verdict", "scaling", "summary", "coverage"} <= sections
    assert not sections & {"backends", "learning", "quality", "counts", "lost-time"}
    assert sections >= set(re.findall(r'<li><a href="#([\w-]+)"', page))


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("AMD EPYC", "AMD EPYC"),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "Intel Xeon E5-2680 v4"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "AMD Ryzen 9 7950X"),
        ("CPU", "CPU"),
    ],
)
def test_the_title_is_a_question_in_plain_words(relay, model, shown):
    """With display names; processors lose their trade marks."""
    known = relay.study.metrics

    assert shown == names.processor(model)
    assert re.fullmatch(
        r"ResNet-50 on \d+ cores? of an? .+: how well does it scale\?",
        names.title(relay),
    )
    assert names.metric("top_1", known) == "Top-1 accuracy"
    assert names.metric("rate_of_mine", known) == "Rate of mine"
    assert names.workload("mine") == "mine"


def test_what_is_open_can_be_narrowed_and_nothing_is_promised(make):
    """Equal backends are never ranked, however many generations there are."""
    view = view_store(make(noise=0.3, num_rounds=4, repeats=4))
    item = next(c for c in view.comparisons if c.ratio and not c.holds)

    assert re.fullmatch(
        r"`python -m harness sweep .*--repeats 8.*` narrows the intervals by 44%",
        plain(next_step._narrower(view, [item.ratio])),
    )


def test_damaged_figures_do_not_break_the_verdict(relay):
    (point,) = [p for p in relay.points_of(WEAK, "in_graph") if p.efficiency]
    wide = dataclasses.replace(point.efficiency, value=1e300, low=0.0, high=1e301)
    damaged = dataclasses.replace(point, efficiency=wide, speedup=wide)
    points = tuple(damaged if p is point else p for p in relay.points)
    view = dataclasses.replace(relay, points=points)

    assert brief.judge(view).text
    assert over_replicas.draw_first_screen(view) is not None
