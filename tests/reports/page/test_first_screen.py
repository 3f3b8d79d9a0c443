"""The first screen: an answer to the title, the table, cautions, and what is next."""

import dataclasses
import io
import re

import pytest
import rich.console
from command_lines import plain, visible
from synthetic import Lost, every, interleaving_shape

import reports
from reports import render_section, verdict, view_store
from results import ScalingMode, TrialStatus

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG
PERCENT = r"[\d.]+ % \[[\d.]+, [\d.]+\]"
RATIO = r"[\d.]+\N{MULTIPLICATION SIGN} \[[\d.]+, [\d.]+\]"
IDEAL = r"\([\d.]+ % of ideal, between [\d.]+ and [\d.]+ %\)"


def _text(view):
    return plain(verdict(view).text)


def _first_screen(store):
    return render_section("verdict", view_store(store))


def _printed(store, width=200):
    stream = io.StringIO()
    reports.print_summary(store, rich.console.Console(file=stream, width=width))
    return plain(stream.getvalue())


def test_the_first_sentence_answers_the_title(interleaved):
    judged, screen = verdict(interleaved), _first_screen(interleaved.store)
    answer = plain(judged.sentences[0])
    (command,) = [text for text, is_typed in judged.next_parts if is_typed]

    assert re.fullmatch(
        rf"ResNet-50 trains 1\.\d times as fast on two cores {IDEAL}, \d\.\d+ times as"
        r" fast as MirroredStrategy\.",
        answer,
    )
    assert screen.index(judged.sentences[0]) < screen.index("<table")
    assert answer in _printed(interleaved.store)
    assert f'description" content="{judged.sentences[0]}' in reports.build_report(
        interleaved.store
    )
    # Noise that lasts ten minutes is in a rate, and in no interval of it.
    assert re.fullmatch(
        r"Brackets are 95 % intervals over 4 runs of fresh processes\. Rates are this"
        r" machine's from 2025-01-01 00:00 to 00:\d\d UTC\.",
        plain(judged.note),
    )
    # What is typed is in code letters as a whole.
    assert command.startswith("python -m harness sweep ")
    assert command.endswith("--order interleaved --controls all")
    assert f"<code>{command}</code> measures what" in screen
    assert "repetitions" not in screen


def test_the_table_has_every_case_once_with_intervals(interleaved):
    rows = verdict(interleaved).rows
    shown, printed = (
        plain(_first_screen(interleaved.store)),
        _printed(interleaved.store),
    )

    assert [(row.mode, row.backend, row.size) for row in rows] == [
        ("baseline", "in_graph", "1 \N{MULTIPLICATION SIGN} 8"),
        ("weak", "in_graph", "2 \N{MULTIPLICATION SIGN} 8"),
        ("baseline", "tf_mirrored", "1 \N{MULTIPLICATION SIGN} 8"),
        ("weak", "tf_mirrored", "2 \N{MULTIPLICATION SIGN} 8"),
        ("strong", "in_graph", "2 \N{MULTIPLICATION SIGN} 4"),
        ("strong", "tf_mirrored", "2 \N{MULTIPLICATION SIGN} 4"),
    ]
    assert "| images/s |" in reports.as_markdown(interleaved.store)
    for row in rows:
        rate, efficiency, ratio = map(plain, row.cells[-3:])
        assert re.fullmatch(r"[\d.]+ \[[\d.]+, [\d.]+\]", rate)
        assert re.fullmatch("" if row.mode == "baseline" else PERCENT, efficiency)
        against = (
            "" if row.backend == "in_graph" else rf"{RATIO}(, no difference shown)?"
        )
        assert re.fullmatch(against, ratio)
        assert all(plain(cell) in shown for cell in row.cells)
        assert rate.partition(" [")[0] in printed
    assert 4 == shown.count('<svg class="bar"')


@pytest.mark.parametrize("width", [140, 80, 60, 50])
def test_no_number_of_a_narrow_terminal_is_cut(make, width):
    names = ("in_graph", "tf_mirrored", "multi_worker_in_graph")
    printed = _printed(make(backends=names, num_measured_steps=3), width)

    assert all(len(line) <= width for line in printed.splitlines() if "\u2500" in line)
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed
    assert "of ideal" in printed
    is_narrow = re.search(r"no room for: \w+ against it", " ".join(printed.split()))
    assert bool(is_narrow) == (width < 100)


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
                r"Most of what in_graph loses: exposed communication, 1[567][\d.]*"
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
            r"\(99\.9\d* % of ideal",
            ("Most of what", "input", "of a step", "Next: try"),
        ),
    ],
    ids=["cause", "two causes", "nothing lost"],
)
def test_the_verdict_names_the_largest_cause_if_there_is_one(
    make, lost, said, not_said
):
    text = _text(view_store(make(interleaving_shape(lost={"in_graph": lost}))))

    assert re.search(said, text), text
    assert not [words for words in not_said if words in text]


def test_a_study_says_with_what_it_is_not_compared(make, sequence):
    statuses = every(TrialStatus.FAILED, backends=("tf_mirrored",))

    alone, failed = (
        _text(view_store(make(**fields)))
        for fields in ({"backends": ("in_graph",)}, {"statuses": statuses})
    )
    assert "), in_graph alone." in alone
    assert "), not compared with MirroredStrategy." in failed
    # A cause that was not recorded is not guessed: of trials in sequence.
    assert "Causes were not recorded." in _text(sequence)


def test_what_intervals_do_not_exclude_is_inconclusive(make):
    view = view_store(make(noise=0.5))
    points = tuple(
        dataclasses.replace(
            point, speedup=point.speedup and dataclasses.replace(point.speedup, low=0.9)
        )
        for point in view.points
    )
    judged = verdict(dataclasses.replace(view, points=points))

    assert re.match(
        r"Whether ResNet-50 trains faster on two cores is inconclusive: [\d.]+ times as"
        r" fast \(.* % of ideal, .*\); no difference from \w+ is shown\.",
        plain(judged.sentences[0]),
    )
    ratios = [row.ratio for row in judged.rows if row.ratio]
    assert ratios
    assert all(ratio.endswith(", no difference shown") for ratio in ratios)


def test_several_backends_are_ranked_together(make):
    backends = ("in_graph", "tf_mirrored", "multi_worker")
    view = view_store(
        make(interleaving_shape(backends=backends, repeats=5, controls=()))
    )

    assert re.search(
        r"faster than (each|\d) of 2 other backends(, slower than \d)?"
        r" \(corrected for \d+ comparisons, Holm\)\.",
        verdict(view).sentences[0],
    )


@pytest.mark.parametrize(
    ("target", "said"),
    [(0.5, "above 50 %"), (1.0, "below 100 %"), ("same", r"\d\d % inconclusive")],
)
def test_an_efficiency_is_tested_against_the_target_of_the_study(
    tmp_path, synthetic, target, said
):
    store = synthetic.make_store(tmp_path / "study")
    (point,) = [
        point
        for point in view_store(store).points_of(WEAK, "in_graph")
        if point.efficiency
    ]
    value = point.efficiency.value if target == "same" else target
    plan = store.read_plan()
    measuring = plan.measuring.model_copy(update={"efficiency_target": value})
    store.write_plan(plan.model_copy(update={"measuring": measuring}))
    (row,) = [
        row
        for row in verdict(view_store(store)).rows
        if (row.backend, row.mode) == ("in_graph", "weak")
    ]

    assert re.fullmatch(rf"{PERCENT}, {said}", plain(row.efficiency))


def test_without_intervals_the_note_says_so(make):
    judged = verdict(view_store(make(repeats=1)))

    assert judged.note.startswith("1 repetition: no intervals. Rates are ")
    assert "[" not in judged.text
    assert all("one run: no interval" in row.efficiency for row in judged.rows)


def test_of_one_repetition_intervals_are_for_its_processes_only(make):
    judged = verdict(view_store(make(repeats=1, num_rounds=12)))

    assert all("these processes only" in row.efficiency for row in judged.rows)


@pytest.mark.parametrize(
    ("num_cores", "following"),
    [
        (2, "measure on a machine with more cores"),
        (4, "measure more replicas: there are 4 cores"),
    ],
)
def test_a_machine_without_more_cores_is_not_given_more_replicas(
    tmp_path, synthetic, num_cores, following
):
    """Where nothing else is open."""
    shape = synthetic.Shape(num_rounds=6, repeats=4, aa_factor=1.0)
    store = synthetic.make_store(tmp_path, shape)
    for trial in store.trials():
        update = {"num_available_cores": num_cores}
        placement = trial.env.placement.model_copy(update=update)
        env = trial.env.model_copy(update={"placement": placement})
        store.write_env(trial.trial_id, env)
    view = view_store(store)
    ideal = {"value": 1.0, "low": 0.99, "high": 1.01}
    points = (
        dataclasses.replace(
            point,
            efficiency=point.efficiency
            and dataclasses.replace(point.efficiency, **ideal),
        )
        for point in view.points
    )

    assert (
        following == verdict(dataclasses.replace(view, points=tuple(points))).following
    )


def test_every_figure_of_a_table_has_its_interval_or_says_why_not(make, broken):
    stores = [
        broken,
        make(noise=0.5),
        make(
            backends=("multi_worker_in_graph", "tf_multi_worker", "async", "single"),
            replicas=(1, 2, 4, 8),
            num_rounds=4,
            aa_factor=1.3,
            discarded_share=0.2,
        ),
        make(replicas=(2,)),
    ]
    for store in stores:
        for row in verdict(view_store(store)).rows:
            assert "[" in row.rate or "no interval" in row.efficiency
            for cell in (row.efficiency, row.ratio):
                assert "[" in cell or not re.search(r"\d", cell) or "no " in cell, row


def test_if_all_trials_failed_the_commonest_reason_is_the_headline(make):
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


@pytest.mark.parametrize("is_planned", [True, False])
def test_nothing_measured_is_the_verdict(tmp_path, complete, is_planned):
    plan = complete.read_plan()
    empty = type(complete).create(tmp_path / "empty")
    empty.write_plan(plan if is_planned else plan.model_copy(update={"trials": ()}))
    (headline,) = verdict(view_store(empty)).sentences
    page = reports.build_report(empty)

    number = 18 if is_planned else 0
    assert f"Nothing was measured: none of {number} planned trials is ok." == headline
    assert 'role="img" aria-labelledby' not in page
    assert is_planned == ("18 of 18 trials gave no number (18 missing)" in page)


def test_sections_without_content_vanish(make):
    fields = {"modes": (STRONG,), "repeats": 2, "is_evaluated": False}
    page = reports.build_report(make(backends=("in_graph",), **fields))
    sections = set(re.findall(r'<section id="([\w-]+)"', page))

    assert {"verdict", "steps", "trials", "machine", "method"} == sections
    assert sections >= set(re.findall(r'<li><a href="#([\w-]+)"', page))


def test_of_more_sizes_the_first_table_has_the_largest_and_another_all(make):
    store = make(replicas=(1, 2, 4))
    page = reports.build_report(store)
    first, rest = page.split("</section>", 1)

    assert 4 == first.count('<td class="eff">')
    assert 'id="hero-title"' in first
    assert 'id="hero-title"' not in rest
    # Two backends: a baseline, and two sizes in two modes.
    assert 10 == rest.partition('id="cases"')[2].count('<td class="eff">')
    assert "oversubscribed at 4 replicas" in page


def test_what_limits_a_study_is_said(make, tmp_path, synthetic):
    failed = {("in_graph", WEAK, 1, k): TrialStatus.TIMEOUT for k in range(3)}
    page = reports.build_report(make(modes=(WEAK,), statuses=failed))
    assert "no trial of the baseline (n = 1) is ok" in page
    assert "3 of 12 trials gave no number (3 timeout)" in page
    page = reports.build_report(make(fingerprints=("aaaa", "bbbb")))
    assert "2 different environments" in page
    assert "Environment <code>bbbb</code>" in page

    shape = synthetic.Shape(backends=("in_graph",), modes=(STRONG,))
    store = synthetic.make_store(tmp_path, shape)
    for share, trial in zip((0.31, 0.07), list(store.trials())[:2], strict=True):
        env = trial.env.model_copy(update={"foreign_cpu_fraction": share})
        store.write_env(trial.trial_id, env)
    trial_id = store.trial_ids()[-1]
    (store.trial_dir(trial_id) / "result.json").write_text("{")
    page = reports.build_report(store)
    assert re.search(
        r"others used up to 31 % of CPU time in 2 of .* more than 5 % affects",
        plain(page),
    )
    assert "1 record could not be read" in page
    assert f"<code>{trial_id}/result.json</code>: not JSON" in page
    assert str(tmp_path) not in page


def test_missing_quality_and_memory_are_left_out(tmp_path, synthetic):
    store = synthetic.make_store(tmp_path, synthetic.Shape(is_evaluated=False))
    for trial in store.trials():
        (rank,) = trial.result.ranks
        ranks = (rank.model_copy(update={"peak_memory_bytes": 0}),)
        result = trial.result.model_copy(update={"ranks": ranks})
        store.write_result(trial.trial_id, result)
    page = reports.build_report(store)

    assert "GiB [" not in visible(page)
    assert "Start to first step" in page
    assert 'id="quality"' not in page


def test_quality_says_how_few_steps_it_is_after(complete):
    assert "Measured after only 19 training steps" in reports.build_report(complete)


@pytest.mark.parametrize(
    ("workload", "model", "shown"),
    [
        ("resnet50", "AMD EPYC", "ResNet-50 on 2 cores of an AMD EPYC"),
        (
            "resnet50",
            "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz",
            "ResNet-50 on 2 cores of an Intel Xeon E5-2680 v4",
        ),
        (
            "resnet50",
            "AMD Ryzen 9 7950X 16-Core Processor",
            "ResNet-50 on 2 cores of an AMD Ryzen 9 7950X",
        ),
        ("mine", "CPU", "mine on 2 cores of a CPU"),
    ],
)
def test_the_title_is_a_question_in_plain_words(make_study, workload, model, shown):
    fields = {"backends": ("in_graph",), "modes": (WEAK,), "repeats": 1}
    store = make_study("s", workload=workload, env={"cpu_model": model}, **fields)
    (title,) = re.findall("<title>(.*)</title>", reports.build_report(store))

    assert f"{shown}: how well does it scale?" == plain(title)


def test_what_is_open_can_be_narrowed_and_nothing_is_promised(make):
    view = view_store(make(noise=0.3, num_rounds=4, repeats=4))
    assert any(item.ratio and not item.holds for item in view.comparisons)
    assert re.fullmatch(
        r"`python -m harness sweep .*--repeats 8.*` narrows the intervals by 44.%",
        plain(verdict(view).following),
    )


def test_damaged_figures_do_not_break_the_verdict(make):
    whole = view_store(make(replicas=(1, 2, 4)))
    *_, point = (p for p in whole.points_of(WEAK, "in_graph") if p.efficiency)
    wide = dataclasses.replace(point.efficiency, value=1e300, low=0.0, high=1e301)
    damaged = dataclasses.replace(point, efficiency=wide, speedup=wide)
    points = tuple(damaged if p is point else p for p in whole.points)
    view = dataclasses.replace(whole, points=points)

    assert verdict(view).text
    assert 'id="hero-title"' in render_section("verdict", view)
