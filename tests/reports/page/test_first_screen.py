"""The first screen: verdict in few words, marks of trust, one figure, and the title."""

import dataclasses
import itertools
import re

import pytest
from relay_study import ALL, Lost, RelayShape
from relay_study import make_store as make_relay

from reports.charts import over_replicas
from reports.page import build
from reports.page.sections import overview
from reports.view.view import view_store
from reports.words import brief, formats, names, next_step
from results.records import quality_records
from results.records.models import MetricFacts, ScalingMode, TrialStatus

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG
PERCENT = r"[\d.]+ % \[[\d.]+, [\d.]+\]"


def _plain(text):
    return text.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")


def _text(view):
    return _plain(brief.judge(view).text)


def _first_screen(store):
    return str(overview.render_verdict(view_store(store)))


def test_the_verdict_says_how_well_at_which_number_weak_and_strong(relay):
    judged = brief.judge(relay)
    text = _plain(judged.text)

    assert re.match(
        rf"[^:]*: in_graph keeps {PERCENT} efficiency on 2 replicas in weak and "
        rf"{PERCENT} in strong scaling\. ",
        text,
    )
    ratio = rf"[\d.]+{formats.TIMES} \[[\d.]+, [\d.]+\] as fast as tf_mirrored"
    assert re.search(ratio, text)
    assert "Next: " in text
    assert _plain(judged.note).startswith(
        "In brackets: 95 % intervals, n = 4 generations of fresh processes; ratios hold"
    )


def test_the_table_has_every_backend_and_mode_with_intervals(relay):
    rows = brief.judge(relay).rows
    number = r"[\d.]+ \[[\d.]+, [\d.]+\]"

    assert [(row.backend, row.mode, row.num_replicas) for row in rows] == [
        ("in_graph", "weak", 2),
        ("tf_mirrored", "weak", 2),
        ("in_graph", "strong", 2),
        ("tf_mirrored", "strong", 2),
    ]
    assert brief.columns(relay)[3] == "images/s"
    for row in rows:
        assert re.fullmatch(number, _plain(row.rate))
        assert re.fullmatch(PERCENT, _plain(row.efficiency))
        assert _plain(row.how_sure) == "95 %, n = 4 generations"
    shown = _first_screen(relay.store)
    assert all(cell in shown for row in rows for cell in row.cells)


def test_the_verdict_names_the_largest_cause_with_its_share(controlled):
    """10 ms of communication in a step of 62 ms; from the controls."""
    text = _text(view_store(controlled))

    assert re.search(
        r"Most of what in_graph loses: waiting for communication, 1[567][\d.]* % "
        r"\[1[567][\d.]*, 1[567][\d.]*\] of a step\.",
        text,
    )
    assert text.endswith("Next: try larger batches per replica.")


def test_where_nothing_is_lost_no_cause_and_no_advice_is_given(tmp_path):
    """One replica waits for its input for a third of its step, and so do two."""
    even = Lost(input_alone=0.015, input=0.015, exposed_communication=0.0)
    shape = RelayShape(lost={"in_graph": even}, controls=ALL)
    text = _text(view_store(make_relay(tmp_path, shape)))

    assert "in_graph keeps 99.9" in text
    for word in ("Most of what", "input", "of a step"):
        assert word not in text
    assert "Next: try" not in text


def test_a_loss_without_a_single_cause_is_not_explained(tmp_path):
    """Half of it is contention, and half communication."""
    both = Lost(contention=0.008, exposed_communication=0.008)
    shape = RelayShape(lost={"in_graph": both}, controls=ALL)
    text = _text(view_store(make_relay(tmp_path, shape)))

    assert re.search(
        r"in_graph loses [\d.]+ % \[.*\] of a step; no single cause is shown", text
    )
    assert "Next: try" not in text


def test_what_is_typed_is_in_code_letters_as_a_whole(relay):
    typed = [text for text, is_typed in brief.judge(relay).next_parts if is_typed]

    (command,) = typed
    assert command.startswith("python -m harness sweep ")
    assert command.endswith("--order relay --controls all")
    assert f"<code>{command}</code> measures what" in _first_screen(relay.store)


def test_a_study_of_one_backend_says_that_it_ranks_none(tmp_path, synthetic):
    """A reader asks which is faster; so it does where the others failed."""
    alone = synthetic.make_store(
        tmp_path / "alone", synthetic.Shape(backends=("in_graph",))
    )
    statuses = {
        ("tf_mirrored", mode, size, repetition): TrialStatus.FAILED
        for mode in (WEAK, STRONG)
        for size in (1, 2)
        for repetition in range(3)
    }
    beside = synthetic.make_store(
        tmp_path / "beside", synthetic.Shape(statuses=statuses)
    )

    assert "Only in_graph was measured." in _text(view_store(alone))
    assert "No comparison with tf_mirrored." in _text(view_store(beside))


def test_without_intervals_the_note_says_so(tmp_path, synthetic):
    view = view_store(synthetic.make_store(tmp_path, synthetic.Shape(repeats=1)))
    judged = brief.judge(view)

    assert judged.note.startswith("n = 1 repetition: no intervals. Rates hold for ")
    assert "[" not in judged.text
    assert {"one repetition: no interval"} == {row.how_sure for row in judged.rows}


def test_a_machine_without_more_cores_is_not_given_more_replicas(relay):
    """It has two, and both are used; one replica leaves one."""
    points = [p for p in relay.points_of(STRONG, "in_graph") if p.trial_ids]

    assert next_step._wider(relay, points) == "a machine with more cores"
    assert next_step._wider(relay, points[:1]) == "more replicas, of 2 cores"


def test_a_cause_that_was_not_recorded_is_not_guessed(sequence):
    """Trials in sequence have no turns and no controls."""
    assert "Causes were not recorded." in _text(sequence)


def test_every_estimate_of_a_verdict_has_its_interval(tmp_path, synthetic):
    """Whatever was measured: no figure is written without what it is worth."""
    shapes = [
        synthetic.BROKEN,
        synthetic.Shape(noise=0.5),
        synthetic.Shape(
            backends=("multi_worker_in_graph", "tf_multi_worker", "async", "single"),
            replicas=(1, 2, 4, 8),
            num_rounds=4,
            twin_factor=1.3,
            void_share=0.2,
        ),
        synthetic.Shape(replicas=(2,)),
    ]
    for number, shape in enumerate(shapes):
        view = view_store(synthetic.make_store(tmp_path / str(number), shape))
        judged = brief.judge(view)
        text = _plain(judged.text)
        figures = re.findall(rf"[\d.]+(?: %|{formats.TIMES})", text)

        assert text.count("[") == len(figures), text
        for row in judged.rows:
            assert "[" in row.rate or "no interval" in row.how_sure


def test_if_all_trials_failed_the_commonest_reason_is_the_headline(tmp_path, synthetic):
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
        r"\(1[67] of 18 planned trials\)\. Next: fix this, then "
        r"python -m harness sweep --study resnet50-laptop-synthetic --retry failed\.",
        text,
    )
    assert "<svg" not in screen
    assert "nothing measured" in screen


def test_sections_without_content_vanish(tmp_path, synthetic):
    """No heading stands above a sentence that there is nothing."""
    shape = synthetic.Shape(
        backends=("in_graph",), modes=(STRONG,), repeats=2, is_evaluated=False
    )
    page = build.build_report(synthetic.make_store(tmp_path, shape))
    sections = set(re.findall(r'<section id="([\w-]+)"', page))

    assert {"verdict", "scaling", "summary", "coverage"} <= sections
    assert not sections & {"backends", "learning", "quality", "counts", "lost-time"}
    assert sections >= set(re.findall(r'<li><a href="#([\w-]+)"', page))


def test_the_title_is_a_question_in_plain_words(relay):
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
def test_processors_lose_their_trade_marks(model, shown):
    """A model that is nothing else stays."""
    assert shown == names.processor(model)


def test_metrics_have_display_names():
    (top_1, _) = (
        MetricFacts(**facts) for facts in quality_records.of_workload("resnet50")
    )
    assert names.metric("top_1", {"top_1": top_1}) == "Top-1 accuracy"
    assert names.metric("rate_of_mine", {"top_1": top_1}) == "Rate of mine"
    assert names.workload("resnet50") == "ResNet-50"
    assert names.workload("mine") == "mine"


def test_what_is_open_can_be_narrowed_and_nothing_is_promised(tmp_path, synthetic):
    """Equal backends are never ranked, however many generations there are."""
    shape = synthetic.Shape(noise=0.3, num_rounds=4, repeats=4)
    view = view_store(synthetic.make_store(tmp_path, shape))
    item = next(c for c in view.comparisons if c.ratio and not c.holds)
    text = _plain(next_step._narrower(view, [item.ratio]))

    assert re.fullmatch(
        r"`python -m harness sweep .*--repeats 8.*` makes intervals about 0\.6 times"
        r" as wide",
        text,
    )


def test_damaged_figures_do_not_break_the_verdict(relay):
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

    assert brief.judge(view).text
    assert over_replicas.draw_first_screen(view) is not None


def test_a_relay_has_generations(relay, sequence):
    assert (relay.repetition, sequence.repetition) == ("generation", "repetition")
    assert "repetitions" not in _first_screen(relay.store)
