"""The site of several studies: index, pages, links, drawings, history; two compared."""

from __future__ import annotations

import dataclasses
import html
import itertools
import posixpath
import re

import pytest
from click.testing import CliRunner
from command_lines import plain, visible
from study_files import edit_record

from harness import command_line
from reports import compare_studies, comparison_page, write_site
from results import Estimate, ScalingMode, WriteStoreError, load_study
from results.judging import metric_of
from tests.reports.conftest import site_of

METRIC = metric_of("throughput")


@pytest.fixture(scope="module")
def broken(make_study, synthetic):
    statuses = synthetic.every(synthetic.TrialStatus.FAILED, repetitions=range(4))
    return make_study("<script>alert(1)</script>", day=4, statuses=statuses)


@pytest.fixture(scope="module")
def site(first, second, elsewhere, broken, page_of_a_study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    return site_of([second, broken, first, elsewhere], folder)


@pytest.fixture(scope="module")
def index(site):
    return site["index.html"]


def test_the_order_of_studies_changes_no_byte(
    site, first, second, elsewhere, broken, page_of_a_study, tmp_path
):
    assert site == site_of([first, second, elsewhere, broken], tmp_path)


def test_every_link_leads_to_a_page_of_the_site(site):
    for name, page in site.items():
        for address in re.findall(r'<a [^>]*href="([^"#]*)', page):
            target = posixpath.normpath(f"{posixpath.dirname(name)}/{address}")
            assert not address or target.lstrip("/") in site, (name, address)
        assert not re.search(r"<(link|iframe|img)\b| src=|://", page)


def test_each_study_has_its_page_with_a_way_back(site):
    pages = [name for name in site if name.startswith("studies/")]

    assert {
        "studies/before/index.html",
        "studies/after/index.html",
        "studies/elsewhere/index.html",
        "studies/script-alert-1-script/index.html",
    } == set(pages)
    for name in pages:
        assert '<a href="../../index.html">All studies</a>' in site[name]


def test_the_index_reads_without_its_script(index):
    plain = re.sub(r"<script>.*?</script>", "", index, flags=re.DOTALL)
    names = re.findall(r'<tr data-name="([^"]*)"', index)
    table = plain.partition("<table")[2].partition("</table>")[0]
    row = visible(table.partition('data-name="before"')[2].partition("</tr>")[0])

    assert ["elsewhere", "after", "before"] == names[1:]
    assert '<form class="filter" hidden>' in plain
    assert "Nothing was measured: ValueError: &lt;script&gt;" in table
    assert 6 == table.count('<svg class="bar"')
    percent = r"[\d.]+ % \[[\d.]+, [\d.]+\] on 2"
    assert re.search(
        rf"ResNet-50, laptop 2 cores of an? .* in_graph {percent} {percent} "
        r"[\d.]+\S \[[\d.]+, [\d.]+\] MirroredStrategy 2026-01-01 A, caution",
        row,
    ), row
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in index
    assert 1 == index.count("<script>")


def test_neighbours_are_compared_or_refused_with_the_reason(site, index):
    text = " ".join(re.sub(r"<[^>]*>", "", index).split())

    assert ["compare/after-and-before.html"] == [
        name for name in site if name.startswith("compare/")
    ]
    assert "after and before: In after, throughput is" in text
    assert "elsewhere and after are not comparable: the machines differ: proc" in text
    assert "and elsewhere are not comparable: no case was measured in both" in text


def test_history_keeps_machines_apart(index):
    assert re.search(r"\b2 kinds of machines\. ", index)
    history = index.split('id="history"')[1]

    assert 6 == history.count('class="multiple"') == history.count('<svg class="bar"')
    assert "<td>M1</td>" in history
    assert "Other X9, 2 cores" in history
    assert "4 cases left out" not in history
    assert "6 cases left out" in history


def test_equal_names_get_folders_of_their_own(make_study, page_of_a_study, tmp_path):
    fields = {"backends": ("in_graph",), "modes": (ScalingMode.WEAK,), "repeats": 1}
    names = ["a", "A", "../../etc", "a", ".", "x" * 200]
    stores = [make_study(name, day=1 + k, **fields) for k, name in enumerate(names)]
    site = site_of(stores, tmp_path)
    rows = re.findall(
        r'<a href="studies/([^/]+)/index.html">([^<]*)</a>', site["index.html"]
    )
    slugs = ["a", "A-2", "etc", "a-3", "study", "x" * 80]

    assert [*zip(slugs, names, strict=True)] == rows[::-1]
    assert {f"studies/{slug}/index.html" for slug in slugs} <= set(site)


def test_a_file_in_the_way_of_the_site_is_kept(
    tmp_path, first, second, page_of_a_study
):
    (tmp_path / "site").write_text("mine")
    with pytest.raises(WriteStoreError, match=r"cannot write site .*not a directory"):
        write_site([first, second], tmp_path / "site", METRIC)

    assert "mine" == (tmp_path / "site").read_text()


def estimate(value, low=None, high=None):
    return Estimate(value=value, low=low, high=high, n=4, unit="", method="")


COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40
URL = "https://example.org/tree/"


@pytest.mark.parametrize(
    ("commits", "address", "links"),
    [
        ((None,), "", []),
        ((None,), URL, [(URL, "Source code")]),
        ((COMMIT,), f"{URL}{{commit}}", [(f"{URL}{COMMIT}", "Source code")]),
        # Of two, each by the start of its name.
        (
            (OTHER, COMMIT),
            f"{URL}{{commit}}?a=1&b=2",
            [
                (f"{URL}{COMMIT}?a=1&b=2", "Source code (0123456789ab)"),
                (f"{URL}{OTHER}?a=1&b=2", "Source code (ffffffffffff)"),
            ],
        ),
    ],
)
def test_the_commit_is_in_the_address(
    make_study, page_of_a_study, tmp_path, commits, address, links
):
    modes = (ScalingMode.WEAK,)
    store = make_study("a", modes=modes, repeats=1, backends=("in_graph",))
    for path, commit in zip(
        sorted(store.root.glob("trials/*/env.json")),
        itertools.cycle(commits),
        strict=False,
    ):
        edit_record(path, machine_state=commit and {"git_commit": commit})
    page = site_of([store], tmp_path, source_url=address)["studies/a/index.html"]
    found = re.findall(r'<a href="([^"]*)">(Source code[^<]*)</a>', page)

    assert links == [(html.unescape(url), text) for url, text in found]


def test_pages_link_the_code(synthetic, tmp_path, page_of_a_study):
    shape = synthetic.Shape(name="a", modes=(synthetic.WEAK,), repeats=1)
    synthetic.make_store(tmp_path / "a", shape)
    page = tmp_path / "page.html"
    arguments = ["report", "a", "--runs-dir", str(tmp_path), "-o", str(page)]
    done = CliRunner().invoke(command_line, arguments)
    assert 0 == done.exit_code, done.output
    assert "Source code" not in page.read_text()

    arguments.append("--source-url=https://example.org/code?a=1&b=2")
    done = CliRunner().invoke(command_line, arguments)
    assert 0 == done.exit_code, done.output
    link = '<a href="https://example.org/code?a=1&amp;b=2">Source code</a>'
    assert link in page.read_text()


@pytest.fixture(scope="module")
def compared(first, second):
    return compare_studies(load_study(first), load_study(second), METRIC)


def with_ratios(compared, *ratios):
    """Gives the first cases of a comparison other ratios, and leaves the rest out."""
    rows = []
    for row, (value, low, high) in zip(compared.rows, ratios, strict=False):
        ends = {"low": low, "high": high}
        ratio = dataclasses.replace(row.estimate, value=value, **ends)
        rows.append(row._replace(estimate=ratio))
    return comparison_page(dataclasses.replace(compared, rows=tuple(rows)))


@pytest.mark.parametrize(
    ("values", "reach"), [((1.01, 0.99), 1.05), ((1.0, 0.8), 1.5), ((50.0,), 10.0)]
)
def test_the_axis_of_ratios_holds_all_values(compared, values, reach):
    page = with_ratios(compared, *((value, None, None) for value in values))

    ends = f"<span>{1 / reach:.2g}</span><span>1</span><span>{reach:g}</span>"
    assert ends in page


def test_ratios_that_hold_stand_out(compared):
    ratios = (1.2, 1.1, 1.3), (1.2, 0.0, float("inf"))
    differs, unclear = re.findall(
        r'<svg class="bar".*?</svg>', with_ratios(compared, *ratios), re.DOTALL
    )

    assert "var(--accent)" in differs
    assert "var(--accent)" not in unclear
    assert "M4.0 8.0H156.0" in unclear


def test_the_headline_says_how_much_in_how_many_cases(compared):
    expected = (
        "In A, throughput is 30.0\N{NARROW NO-BREAK SPACE}% higher than in B in 3 of 6"
        " shared cases."
    )
    (found,) = compared.differences

    assert expected in comparison_page(compared)
    assert ("code", "git commit") == (found.group, found.name)
    assert "012345678901" == found.first
    assert "fedcba9876fe with changes" == found.second


def test_a_comparison_has_both_rates_and_the_ratio_of_each_case(compared):
    page = plain(comparison_page(compared))
    first, rest = page.split("</section>", 1)
    row = r"in_graph, 2 replicas x 8 [\d.]+ [\d.]+ \d\.\d{3} \[\d\.\d+, \d\.\d+\]"

    assert re.search(row, visible(first))
    assert 6 == first.count('<svg class="bar"')
    assert first.index("throughput is 30.0 % higher") < first.index("<table")
    assert re.search(r"A before , 2026-01-01 .* 2 cores of an? .* ok", visible(first))
    assert "Advice, no verdict: the effect of the day" in first
    assert "What differs" in rest


def test_the_same_records_give_the_same_page(compared, first, second):
    again = compare_studies(load_study(first), load_study(second), METRIC)
    page = comparison_page(compared)

    assert page == comparison_page(again)
    assert "://" not in page
    assert "<script" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_another_machine_is_a_reason_not_to_conclude(first, elsewhere):
    found = compare_studies(load_study(first), load_study(elsewhere), METRIC)

    assert ("the machines differ: processor ",) == tuple(
        reason[:31] for reason in found.reasons
    )
    (answer,) = re.findall('<p class="answer">(.*?)</p>', comparison_page(found))
    assert answer.startswith(
        "These two studies are not comparable, so the ratios below are shown and judge"
        " nothing: the machines differ: processor"
    )


def test_cases_of_one_study_only_are_listed(first, make_study):
    larger = make_study("larger", replicas=(1, 2, 4), backends=("in_graph",))
    found = compare_studies(load_study(larger), load_study(first), METRIC)

    assert "in_graph, 4 replicas x 8" in found.only_first
    assert "tf_mirrored, 2 replicas x 8" in found.only_second
    assert "Only in A, so without a ratio: in_graph, 4 rep" in comparison_page(found)
