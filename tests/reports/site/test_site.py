"""The site of several studies: index, pages, links, drawings, history; two compared."""

from __future__ import annotations

import itertools
import posixpath
import re

import pytest
from click.testing import CliRunner
from command_lines import plain, visible
from study_files import with_environments

from harness import command_line
from reports.charts import bars
from reports.site import build, comparison
from results import (
    Estimate,
    MachineState,
    ScalingMode,
    WriteStoreError,
    load_study,
)
from results.judging import gate_metrics

METRIC = gate_metrics.THROUGHPUT


@pytest.fixture(scope="module")
def broken(make_study, synthetic):
    statuses = synthetic.every(synthetic.TrialStatus.FAILED, repetitions=range(4))
    return make_study("<script>alert(1)</script>", day=4, statuses=statuses)


@pytest.fixture(scope="module")
def site(first, second, elsewhere, broken, page_of_a_study):
    return dict(build.pages([second, broken, first, elsewhere], METRIC))


@pytest.fixture(scope="module")
def index(site):
    return site["index.html"]


def test_the_order_of_studies_changes_no_byte(
    site, first, second, elsewhere, broken, page_of_a_study
):
    again = dict(build.pages([first, second, elsewhere, broken], METRIC))

    assert site == again


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


def test_equal_names_get_folders_of_their_own(make_study, page_of_a_study):
    fields = {"backends": ("in_graph",), "modes": (ScalingMode.WEAK,), "repeats": 1}
    names = ["a", "A", "../../etc", "a", ".", "x" * 200]
    stores = [make_study(name, day=1 + k, **fields) for k, name in enumerate(names)]
    pages = [name.split("/") for name, _ in build.pages(stores, METRIC)]
    slugs = [folder for kind, folder, *_ in pages[:6] if kind == "studies"]

    assert ["a", "A-2", "etc", "a-3", "study", "x" * 80] == slugs


def test_a_file_in_the_way_of_the_site_is_kept(
    tmp_path, first, second, page_of_a_study
):
    (tmp_path / "site").write_text("mine")
    with pytest.raises(WriteStoreError, match=r"cannot write site .*not a directory"):
        build.write_site([first, second], tmp_path / "site", METRIC)

    assert "mine" == (tmp_path / "site").read_text()


def estimate(value, low=None, high=None):
    return Estimate(value=value, low=low, high=high, n=4, unit="", method="")


@pytest.mark.parametrize(
    ("values", "reach"), [((1.01, 0.99), 1.05), ((1.0, 0.8), 1.5), ((50.0,), 10.0)]
)
def test_the_axis_of_ratios_holds_all_values(values, reach):
    assert reach == bars.reach(map(estimate, values))


def test_ratios_that_hold_stand_out():
    differs = str(bars.ratio_bar(estimate(1.2, 1.1, 1.3), 1.5, is_marked=True))
    endless = estimate(1.2, 0.0, float("inf"))
    unclear = str(bars.ratio_bar(endless, 1.5, is_marked=False))

    assert "var(--accent)" in differs
    assert "var(--accent)" not in unclear
    assert "M4.0 8.0H156.0" in unclear


COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40
URL = "https://example.org/tree/{commit}?a=1&b=2"


def _with_commits(study, *commits):
    """Returns the study with the commits of its trials replaced, in turns."""
    states = itertools.cycle(MachineState(git_commit=commit) for commit in commits)
    return with_environments(study, lambda _: {"machine_state": next(states)})


@pytest.fixture
def small(tmp_path, synthetic):
    shape = synthetic.Shape(name="a", modes=(synthetic.WEAK,), repeats=1)
    return load_study(synthetic.make_store(tmp_path / "a", shape))


def test_the_commit_is_in_the_address(small):
    address = "https://example.org/tree/"
    assert {} == build.source_links(small, "")
    assert {"Source code": address} == build.source_links(small, address)
    one = build.source_links(_with_commits(small, COMMIT), f"{address}{{commit}}")
    assert {"Source code": f"{address}{COMMIT}"} == one
    two = build.source_links(_with_commits(small, OTHER, COMMIT), URL)
    assert ["Source code (0123456789ab)", "Source code (ffffffffffff)"] == [*two]
    assert two["Source code (ffffffffffff)"] == URL.replace("{commit}", OTHER)


def test_pages_link_the_code(small, tmp_path, page_of_a_study):
    del small
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
    return comparison.compare_studies(load_study(first), load_study(second), METRIC)


def test_the_headline_says_how_much_in_how_many_cases(compared):
    expected = (
        "In A, throughput is 30.0\N{NARROW NO-BREAK SPACE}% higher than in B in 3 of 6"
        " shared cases."
    )
    (found,) = compared.differences

    assert expected == comparison.headline(compared)
    assert ("code", "git commit") == (found.group, found.name)
    assert "012345678901" == found.first
    assert "fedcba9876fe with changes" == found.second


def test_a_comparison_has_both_rates_and_the_ratio_of_each_case(compared):
    page = plain(comparison.build(compared))
    first, rest = page.split("</section>", 1)
    row = r"in_graph, 2 replicas x 8 [\d.]+ [\d.]+ \d\.\d{3} \[\d\.\d+, \d\.\d+\]"

    assert re.search(row, visible(first))
    assert 6 == first.count('<svg class="bar"')
    assert first.index("throughput is 30.0 % higher") < first.index("<table")
    assert re.search(r"A before , 2026-01-01 .* 2 cores of an? .* ok", visible(first))
    assert "Advice, no verdict: the effect of the day" in first
    assert "What differs" in rest


def test_the_same_records_give_the_same_page(compared, first, second):
    again = comparison.compare_studies(load_study(first), load_study(second), METRIC)
    page = comparison.build(compared)

    assert page == comparison.build(again)
    assert "://" not in page
    assert "<script" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_another_machine_is_a_reason_not_to_conclude(first, elsewhere):
    found = comparison.compare_studies(load_study(first), load_study(elsewhere), METRIC)

    assert ("the machines differ: processor ",) == tuple(
        reason[:31] for reason in found.reasons
    )
    assert comparison.headline(found).startswith(
        "These two studies are not comparable, so the ratios below are shown and judge"
        " nothing: the machines differ: processor"
    )


def test_cases_of_one_study_only_are_listed(first, make_study):
    larger = make_study("larger", replicas=(1, 2, 4), backends=("in_graph",))
    found = comparison.compare_studies(load_study(larger), load_study(first), METRIC)

    assert "in_graph, 4 replicas x 8" in found.only_first
    assert "tf_mirrored, 2 replicas x 8" in found.only_second
    assert "Only in A, so without a ratio: in_graph, 4 rep" in comparison.build(found)
