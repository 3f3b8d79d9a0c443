"""The page of a gate, of GPUs, and of quality runs."""

import functools
import re
import statistics

import pytest
from command_lines import plain, visible, written

import reports
from reports import gate_record, render_section, verdict, view_store
from results import GpuUse, judging, load_study
from results.statistics import score
from tests.reports.conftest import site_of

THROUGHPUT = judging.metric_of("throughput")


@pytest.fixture(scope="module")
def judged(make, synthetic):
    """Returns a function that records a gate with a known slowdown, or none."""

    @functools.cache
    def measured(slower):
        shape = synthetic.gate_shape(repeats=15, slower=slower)
        store = make(shape)
        rule = judging.Rule(metric=THROUGHPUT, delta=0.05, alpha=0.05)
        return store, judging.judge_revisions(load_study(store), rule, baseline="main")

    def record(*, slower, code, is_recorded=True, **update):
        store, found = measured(slower)
        (store.root / "gate.json").unlink(missing_ok=True)
        if is_recorded:
            of_code = {"exit_code": code, "is_pass": code == 0, "notes": ()}
            record = gate_record(found).model_copy(update=of_code | update)
            store.write_listed("gate.json", record)
        return store

    return record


def test_the_page_of_a_regression_says_regress_and_nothing_is_reliable(
    judged, tmp_path
):
    store = judged(slower=1.1, code=1)
    view = view_store(store)
    page = reports.build_report(store)
    screen = page[page.index('<section id="verdict"') : page.index("</section>")]
    said = visible(screen)

    assert "Reliable" not in page
    assert '<b class="bad">REGRESS:</b>' in screen
    assert re.search(
        r"REGRESS: .* is at worst \+(9|10|11)\.\d % \[\+[\d.]+, \+[\d.]+\] slower"
        r" than .* \(throughput of .*\); the regression threshold is 5 %\.",
        said,
    )
    assert screen.index("REGRESS:") < screen.index("<table")
    assert ", exit code 1" in said
    assert "Against main" in said
    assert "Dashed: the threshold, 5 %." in said
    assert 'stroke="var(--accent)"' in screen
    assert 'class="ok">' not in screen.partition('<ul class="trust"')[0]
    assert "did it get slower?" in page
    assert verdict(view).text.startswith("REGRESS: ")
    assert verdict(view).next_step.startswith("mend the change, or find its commit")
    index = site_of([store], tmp_path)["index.html"]
    (row,) = re.findall(r"<tr data-name=.*?</tr>", index, re.DOTALL)
    assert visible(row).endswith(" A, regress")
    assert "**REGRESS" in reports.as_markdown(store)


@pytest.mark.parametrize(
    ("code", "is_advice", "word", "level"),
    [
        (0, False, "PASS", "ok"),
        # A pass that exits with an error is none.
        (4, False, "PASS", "caution"),
        # Against a stored study.
        (3, True, "ADVICE: PASS", "caution"),
    ],
)
def test_an_equal_tree_passes_in_green(judged, code, is_advice, word, level):
    notes = ("looked after 3, 5 runs",)
    store = judged(slower=1.0, code=code, is_advice=is_advice, notes=notes)
    found = verdict(view_store(store))

    assert (word, level) == (found.verdict, found.level.value)
    if is_advice:
        page = reports.build_report(store)
        assert "what varies between days is in no interval" in page
        assert "looked after 3, 5 runs" in page


def test_a_gate_that_has_not_concluded_has_no_verdict(judged):
    store = judged(slower=1.1, code=1, is_recorded=False)
    found = verdict(view_store(store))
    (store.root / "gate.json").write_text("{}", encoding="utf-8")
    damaged = verdict(view_store(store))

    assert "has not concluded" in found.sentences[0]
    assert "cannot be read" in damaged.sentences[0]
    assert "caution" == found.level.value == damaged.level.value
    assert "NO VERDICT:" in reports.build_report(store)


@pytest.fixture
def show(tmp_path, synthetic):
    """Returns a function that shows the machine of trials that used GPUs so."""

    def run(make_uses):
        store = synthetic.make_store(tmp_path / "s")
        for number, trial in enumerate(store.trials()):
            uses = make_uses(number, trial.spec.num_replicas)
            fields = {"gpus": ("H100",) * trial.spec.num_replicas, "gpu_uses": uses}
            store.write_env(trial.trial_id, trial.env.model_copy(update=fields))
        return render_section("machine", view_store(store))

    return run


def _uses(count, **fields):
    return tuple(GpuUse(index=i, num_samples=5, **fields) for i in range(count))


def test_the_page_has_clocks_power_and_why_a_clock_was_low(show, sequence):
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
    without = render_section("machine", sequence)
    assert "<dt>Accelerators</dt><dd>none</dd>" in without


def _products(number, count):
    """Trials without a rate are counted; in others the last GPU is slow."""
    uses = _uses(count, product_tflops=None if number == 0 else 600.0)
    if number == 1 or count == 1:
        return uses
    return (*uses[:-1], uses[-1].model_copy(update={"product_tflops": 300.0}))


@pytest.mark.parametrize(
    ("make_uses", "expected"),
    [
        # Against the median of its trial.
        (
            _products,
            (
                r"<dt>Matrix product on a GPU</dt><dd>300 to 600 TFLOP/s in bfloat16"
                r"[^<]*the slowest GPU within a trial was GPU \d+, with 0\.[56][^<]*"
                r"of the median: every synchronous step waited for it[^<]*"
                r"not recorded in 1 trial<"
            ),
        ),
        # By the number of GPUs, since all of them count.
        (
            lambda _, n: _uses(n, energy_joules=600.0, watched_sec=2.0),
            (
                r"<dt>Energy</dt><dd>[\d.]+(?: to [\d.]+)? J with 1\WGPU; "
                r"[^<]*, per image on all GPUs of a trial</dd>"
            ),
        ),
        # Exclusive use is checked, and not only planned.
        *(
            (lambda _, n, foreign=foreign: _uses(n, num_foreign_processes=foreign), of)
            for foreign, of in (
                (0, r": the driver listed no other process in \d+\Wtrials"),
                (None, r": not confirmed in \d+ of \d+\Wtrials: the driver does not l"),
                (2, r": other processes used the GPUs of \d+ of \d+\Wtrials, which ar"),
            )
        ),
    ],
    ids=["products", "energy", "exclusive", "unknown", "shared"],
)
def test_the_page_says_what_gpus_did(show, make_uses, expected):
    assert re.search(expected, show(make_uses))


@pytest.fixture(scope="module")
def view(make, synthetic):
    fields = {"budget": synthetic.LEARNING, "num_learning_runs": 5, "has_actors": True}
    return view_store(make(backends=("in_graph",), **fields))


@pytest.fixture(scope="module")
def learning(view):
    return render_section("learning", view)


def test_quality_runs_of_a_case_are_scored_together(view, learning):
    shown = visible(learning)

    for case in view.study.quality_runs:
        values = [e.result.curve[-1].quality[0].value for e in case.ok_entries]
        value = written("quality(score, '')", score=score(values).value)
        assert re.search(rf"{re.escape(case.label)} {re.escape(value)} \[", shown)
        for index in range(5):
            assert 1 == shown.count(f"{case.label}, repetition {index} ")


def test_a_quality_run_that_failed_is_in_the_score_of_its_case(make, synthetic):
    fields = {"backends": ("in_graph",), "modes": (synthetic.WEAK,)}
    failed = synthetic.every(
        synthetic.TrialStatus.FAILED, replicas=(2,), repetitions=range(4), **fields
    )
    store = make(
        **fields,
        repeats=0,
        budget=synthetic.LEARNING,
        num_learning_runs=6,
        statuses=failed,
    )
    shown = visible(render_section("learning", view_store(store)))

    assert re.search(r"in_graph, 2 replicas x 8 failed .* 6 failed \d+ % ", shown)


def test_the_legend_has_the_backends_of_the_figure(make, synthetic):
    failed = synthetic.every(synthetic.TrialStatus.FAILED, backends=("tf_mirrored",))
    for statuses, is_shown in (({}, True), (failed, False)):
        store = make(budget=synthetic.LEARNING, statuses=statuses)
        shown = render_section("learning", view_store(store))
        legend = shown.partition('"legend"')[2].partition("</ul>")[0]
        assert "in_graph</li>" in legend
        assert is_shown == ("tf_mirrored</li>" in legend)
        # Neither steps of actors nor several seeds.
        assert "learning-0-time" in shown
        assert "environment steps of all actors" not in shown
        assert "Seeds together" not in shown


@pytest.mark.parametrize(
    "words",
    [
        "environment steps of all actors",
        "Seeds together",
        "trimmed t (Yuen)",
        "in_graph: what more replicas change",
        "which runs with 1 replica reached at the end: not their median",
        "reached by 5 of 5 runs",
    ],
)
def test_environment_steps_seeds_and_gains_are_shown(learning, words):
    assert words in learning


def test_counts_of_the_window_have_a_column_per_case(view):
    counts = render_section("counts", view)
    heads = re.findall(r'scope="row">([^<]*)<', counts)
    rates, shares = (
        re.findall(r'<td class="n">([^<]*)<', row) for row in counts.split("<tr>")[2:]
    )
    means = [
        statistics.fmean(
            entry.result.window_metrics[0].value for entry in case.ok_entries
        )
        for case in view.measured_cases
    ]

    assert ["Environment steps per second", "Actor idle share"] == heads
    assert [written("quality(mean, '1')", mean=mean) for mean in means] == rates
    assert ["25 %"] * len(means) == [*map(plain, shares)]
    assert counts.count('scope="col"') == 1 + len(means)
    assert counts.count("environment steps/s") == 1
