"""The page of a gate says what the gate said, and is never reliable about a scaling."""

import re

import pytest

from reports.exports import exports
from reports.page import build
from reports.site.card import make_card
from reports.view.view import view_store
from reports.words import brief, formats
from reports.words.judging import judgement
from results.judging import gate, gate_logs, gate_metrics
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
