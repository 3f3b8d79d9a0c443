"""The page of a gate says what the gate said, and is never reliable about a scaling."""

import re

import pytest

from reports.exports import exports, text
from reports.page import build
from reports.page.sections import coverage, learning, steps
from reports.site.card import make_card
from reports.view.view import view_store
from reports.words import brief, formats, judgement, ratio_table
from results.judging import gate, gate_logs, gate_metrics
from results.records.machine_record import GpuUse
from results.statistics import run_scores
from results.study.cases import load_study

REGRESSION = 1


@pytest.fixture
def made(tmp_path, synthetic):
    """Returns a function that makes the study of a gate with a known slowdown."""

    def make(*, slower, code, is_recorded=True):
        shape = synthetic.Shape(
            backends=("in_graph",),
            modes=(synthetic.WEAK,),
            repeats=15,
            num_rounds=10,
            noise=0.008,
            twin_factor=1.0,
            revisions={"1234567890ab": 1 / slower},
            is_evaluated=False,
        )
        store = synthetic.make_store(tmp_path / f"{slower}", shape)
        if is_recorded:
            rule = gate_metrics.Rule(
                metric=gate_metrics.THROUGHPUT, delta=0.05, alpha=0.05
            )
            found = gate.of_revisions(load_study(store), rule, baseline="main")
            record = gate_logs.record_of(
                found, headline=judgement.headline(found), exit_code=code
            )
            gate_logs.write_gate(store, record)
        return store

    return make


def _plain(html):
    text = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    return text.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")


def test_the_page_of_a_regression_says_regress_and_nothing_is_reliable(made):
    store = made(slower=1.1, code=REGRESSION)
    page = build.build_report(store)
    screen = page[page.index('<section id="verdict"') : page.index("</section>")]
    text = _plain(screen)

    assert "Reliable" not in page
    assert '<b class="bad">REGRESS:</b>' in screen
    assert re.search(r"at worst \+(9|10|11)\.\d % \[\+[\d.]+, \+[\d.]+\] slower", text)
    assert "regress, exit code 1" in text
    assert "Against main" in text
    assert "Change of throughput of each case" in screen
    assert "hatched: the margin, 5 %, or more" in text
    assert 'class="ok">' not in screen.partition('<ul class="trust"')[0]
    assert "did it get slower?" in page


def test_card_and_markdown_of_a_regression_say_so(made):
    """No efficiency in place of the verdict."""
    view = view_store(made(slower=1.1, code=REGRESSION))

    assert brief.judge(view).text.startswith("REGRESS: throughput of ")
    assert make_card(view, "any").verdict.startswith("REGRESS")
    assert "gate: regress" == exports.headline(view)
    assert "**REGRESS" in exports.as_markdown(view.store)


def test_an_equal_tree_passes_in_green(made):
    """With its exit code; a pass that exits with an error is none."""
    passed = brief.of_view(view_store(made(slower=1.0, code=0)))
    failed = brief.of_view(view_store(made(slower=1.001, code=4)))

    assert passed is not None
    assert ("pass", "ok") == (passed.verdict, passed.level.value)
    assert failed is not None
    assert "caution" == failed.level.value


def test_advice_is_neither_green_nor_red(made):
    """Against a stored study; and what was seen besides the cases is shown."""
    store = made(slower=1.0, code=3)
    record = gate_logs.read_gate(store)
    assert record is not None
    update = {"is_advice": True, "notes": ("looked after 3, 5 generations",)}
    gate_logs.write_gate(store, record.model_copy(update=update))
    found = brief.of_view(view_store(store))
    page = build.build_report(store)

    assert found is not None
    assert ("advice: pass", "caution") == (found.verdict, found.level.value)
    assert "what varies between days is in no interval" in page
    assert "looked after 3, 5 generations" in page


def test_a_gate_that_has_not_concluded_has_no_verdict(made):
    """Killed before its end, or its record is damaged."""
    store = made(slower=1.1, code=1, is_recorded=False)
    found = brief.of_view(view_store(store))
    (store.root / gate_logs.GATE_NAME).write_text("{}", encoding="utf-8")
    damaged = brief.of_view(view_store(store))

    assert found is not None
    assert damaged is not None
    assert "has not concluded" in found.sentence
    assert "cannot be read" in damaged.sentence
    assert "caution" == found.level.value == damaged.level.value
    assert "NO VERDICT:" in build.build_report(store)


@pytest.fixture
def show(tmp_path, synthetic):
    def run(make_uses):
        store = synthetic.make_store(tmp_path / "s")
        for number, trial in enumerate(store.trials()):
            uses = make_uses(number, trial.spec.num_replicas)
            fields = {"gpus": ("H100",) * trial.spec.num_replicas, "gpu_uses": uses}
            store.write_env(trial.trial_id, trial.env.model_copy(update=fields))
        return str(coverage.render_machine(view_store(store)))

    return run


def _uses(count, **fields):
    return tuple(GpuUse(index=i, num_samples=5, **fields) for i in range(count))


def test_the_page_has_clocks_power_and_why_a_clock_was_low(show):
    """Over all trials; accelerators are those of the largest one."""
    sizes = []

    def make_uses(number, count):
        sizes.append(count)
        return _uses(
            1,
            clock_mhz=1980.0 - number,
            power_watts=600.0 + number,
            temperature_celsius=60.0,
            slowed_by=("power limit",) if number == 1 else (),
        )

    page = show(make_uses)
    last = len(sizes) - 1

    assert f"<dd>{', '.join(['H100'] * max(sizes))}; while trials were measured" in page
    assert f"{1980 - last:,} to 1,980 MHz, 600 to {600 + last} W" in page
    assert "at most 60 degrees Celsius, clock lowered by power limit" in page


def test_the_page_says_which_gpu_was_slow_before_the_windows(show):
    """Against the median of its trial; trials without a rate are counted."""

    def make_uses(number, count):
        uses = _uses(count, product_tflops=None if number == 0 else 600.0)
        if number == 1 or count == 1:
            return uses
        return (*uses[:-1], uses[-1].model_copy(update={"product_tflops": 300.0}))

    page = show(make_uses)

    assert "<dt>Matrix product on a GPU</dt><dd>300 to 600 TFLOP/s in bfloat16" in page
    assert re.search(r"the slowest GPU within a trial was GPU \d+, with 0\.[56]", page)
    assert "of the median: every synchronous step waited for it" in page
    assert "not recorded in 1 trial<" in page


def test_the_page_has_the_energy_of_an_example(show):
    """By the number of GPUs, since all of them count."""
    page = show(lambda _, n: _uses(n, energy_joules=600.0, watched_sec=2.0))

    assert re.search(r"<dt>Energy</dt><dd>[\d.]+(?: to [\d.]+)? J with 1\WGPU; ", page)
    assert ", per image on all GPUs of a trial</dd>" in page


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [
        (0, r": the driver listed no other process in \d+\Wtrials"),
        (None, r": not confirmed in \d+ of \d+\Wtrials: the driver does not list"),
        (2, r": other processes used the GPUs of \d+ of \d+\Wtrials, which are void"),
    ],
)
def test_the_page_says_whether_exclusive_use_was_confirmed(show, foreign, expected):
    """It is checked, and not only planned."""
    page = show(lambda _, n: _uses(n, num_foreign_processes=foreign))

    assert re.search(expected, page)


def test_without_gpus_the_page_says_none(tmp_path, synthetic):
    page = str(
        coverage.render_machine(view_store(synthetic.make_store(tmp_path / "s")))
    )

    assert "<dt>Accelerators</dt><dd>none</dd>" in page


@pytest.fixture(scope="module")
def view(tmp_path_factory, synthetic):
    shape = synthetic.Shape(
        backends=("in_graph",),
        budget=synthetic.LEARNING,
        num_learning_runs=5,
        has_actors=True,
    )
    return view_store(synthetic.make_store(tmp_path_factory.mktemp("study"), shape))


@pytest.fixture(scope="module")
def section(view):
    return str(learning.render_learning(view))


def test_runs_of_a_case_are_scored_together(view):
    """What the records say is what the score is made of."""
    (runs,) = ratio_table.collect_quality_runs(view).values()
    found = learning.collect_scores(runs, view.study.metrics)

    assert [1, 2] == [case.case.spec.num_replicas for case in found]
    for case in found:
        reached = [
            entry.result.curve[-1].quality[0].value for entry in case.case.ok_entries
        ]
        assert sorted(reached) == sorted(case.reached)
        assert run_scores.score({"digits": case.reached}) == case.score
        assert 5 == case.score.n


def test_the_legend_has_the_backends_of_the_figure(tmp_path, synthetic):
    """One whose quality runs failed is in no legend of theirs."""
    failed = {
        ("tf_mirrored", mode, n, repetition): synthetic.TrialStatus.FAILED
        for mode in synthetic.Shape().modes
        for n in (1, 2)
        for repetition in range(3)
    }
    shown = {}
    for name, statuses in (("all", {}), ("some", failed)):
        shape = synthetic.Shape(budget=synthetic.LEARNING, statuses=statuses)
        store = synthetic.make_store(tmp_path / name, shape)
        legend = learning.render_learning(view_store(store)).partition('"legend"')[2]
        shown[name] = legend.partition("</ul>")[0]

    assert "in_graph</li>" in shown["all"]
    assert "tf_mirrored</li>" in shown["all"]
    assert "in_graph</li>" in shown["some"]
    assert "tf_mirrored</li>" not in shown["some"]


def test_environment_steps_and_seeds_are_shown(tmp_path, synthetic, section):
    shape = synthetic.Shape(budget=synthetic.LEARNING)
    plain = learning.render_learning(view_store(synthetic.make_store(tmp_path, shape)))

    assert "environment steps of all actors" in section
    assert "Seeds together" in section
    assert "learning-0-profile" in section
    assert run_scores.TRIMMED_T.partition(":")[0] in section
    assert "learning-0-time" in plain
    assert "environment steps of all actors" not in plain
    assert "Seeds together" not in plain


def test_counts_of_the_window_have_a_column_per_case(view):
    found = steps.collect_counts(view)
    section = steps.render_counts(view)

    assert ["environment_steps_per_sec", "actor_idle_share"] == list(found)
    assert len(found["actor_idle_share"]) == len(view.measured_cases)
    for case in found["environment_steps_per_sec"]:
        assert sum(case.values) / len(case.trial_ids) == pytest.approx(case.mean)
    assert formats.percent(0.25) in section
    rows, columns = section.count('scope="row"'), section.count('scope="col"')
    assert (len(found), 1 + len(view.measured_cases)) == (rows, columns)
    assert section.count("environment steps/s") == 1


def test_runs_of_a_case_are_distinguished(view, section):
    """Page and terminal name the repetition, and what all of a case reached."""
    lines = text.quality_lines(view)

    for replicas in (1, 2):
        for index in range(5):
            start = f"in_graph x{replicas}, repetition {index}, reached "
            assert 1 == sum(line.startswith(start) for line in lines)
        start = f"in_graph x{replicas}, 5 runs: {run_scores.TRIMMED_MEAN}, "
        assert 1 == sum(line.startswith(start) for line in lines)
    assert 12 == len(lines)
    assert "repetition 4" in section


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (861.67, 861.99, ("861.8 return", "[861.7, 862.0]")),
        (640.0, 862.0, ("862 return", "[640, 862]")),
        (861.83, 861.83, ("862 return", "[862, 862]")),
        (861.829999, 861.830001, ("861.830 return", "[861.830, 861.830]")),
    ],
)
def test_an_interval_has_the_digits_that_tell_its_ends(low, high, texts):
    """At least three, at most six; the value has as many."""
    found = formats.quality_with_interval(861.83, low, high, "return")
    assert texts == tuple(part.replace(formats.HARD_SPACE, " ") for part in found)


def test_ratios_keep_their_percentages():
    """However narrow the interval is."""
    value, interval = formats.quality_with_interval(0.9, 0.89, 0.91, "ratio")
    assert formats.percent(0.9) == value
    assert f"[89,{formats.HARD_SPACE}91]" == interval


def test_what_more_replicas_change_is_in_the_section(section):
    assert "in_graph: what more replicas change" in section
    assert "which runs with 1 replica reached at the end: not their median" in section
    assert "reached by 5 of 5 runs" in section


def test_the_terminal_says_what_intervals_of_quality_are_over(view):
    """Not over runs with other seeds."""
    lines = [line for line in text.quality_lines(view) if " reached " in line]

    assert lines
    assert all("(n = 359, interval over test images)" in line for line in lines)
