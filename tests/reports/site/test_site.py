"""The site of several studies: an index, a page each, relative links, history."""

from __future__ import annotations

import html.parser
import re

import pytest

from reports.site import build, card
from results.errors import ResultsError, WriteStoreError
from results.judging import gate_metrics

METRIC = gate_metrics.THROUGHPUT
PAGE = "<!DOCTYPE html>\n<html>\n<body>\n<main>a study</main>\n</body>\n</html>\n"


class Links(html.parser.HTMLParser):
    """Collects addresses and what loads something."""

    def __init__(self):
        super().__init__()
        self.addresses: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "a":
            self.addresses.append(values["href"] or "")
        if tag in {"link", "iframe", "img"} or "src" in values:
            self.loads.append(tag)


@pytest.fixture(scope="module")
def page_of_a_study():
    """Pages of single studies have tests of their own; here they cost no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reports.page.build.build_report", lambda *_: PAGE)
        yield


@pytest.fixture(scope="module")
def broken(make_study, synthetic):
    shape = {
        (backend, mode, size, repetition): synthetic.TrialStatus.FAILED
        for backend in ("in_graph", "tf_mirrored")
        for mode in (synthetic.WEAK, synthetic.STRONG)
        for size in (1, 2)
        for repetition in range(4)
    }
    return make_study("<script>alert(1)</script>", day=4, statuses=shape)


@pytest.fixture(scope="module")
def site(first, second, elsewhere, broken, page_of_a_study):
    return dict(build.pages([second, broken, first, elsewhere], METRIC))


@pytest.fixture(scope="module")
def index(site):
    return site["index.html"]


def test_the_order_of_studies_changes_no_byte(
    site, first, second, elsewhere, broken, page_of_a_study
):
    """Nor does building it again."""
    again = dict(build.pages([first, second, elsewhere, broken], METRIC))

    assert site == again


def test_every_link_leads_to_a_page_of_the_site(site):
    """Relative, to files and not folders, so that any host and a disk will do."""
    for name, page in site.items():
        found = Links()
        found.feed(page)
        folder = name.rpartition("/")[0].split("/") if "/" in name else []
        for address in found.addresses:
            parts = list(folder)
            for part in address.split("/"):
                if part == "..":
                    parts.pop()
                else:
                    parts.append(part)
            assert address.startswith("#") or "/".join(parts) in site, (name, address)
        assert [] == found.loads
        assert "://" not in page


def test_each_study_has_its_page_with_a_way_back(site):
    """And a card on the index."""
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
    """Every study with verdict and figure is in the page; the filter is hidden."""
    plain = re.sub(r"<script>.*?</script>", "", index, flags=re.DOTALL)

    assert '<form class="filter" hidden>' in plain
    assert 4 == plain.count("<li data-workload=")
    assert " hidden" not in plain.split('<ol class="studies">')[1].split("</ol>")[0]
    assert "Nothing was measured: ValueError: &lt;script&gt;" in plain
    assert 6 == plain.count('<svg class="spark"')
    assert re.search(
        r'aria-label="Efficiency of in_graph, weak scaling: 100.% at 1', plain
    )


def test_the_newest_study_is_first_and_all_can_be_chosen(index):
    """The filter has every workload, backend and machine once."""
    names = re.findall(r'data-name="([^"]*)"', index)
    options = re.findall(r"<option>([^<]*)</option>", index)

    assert ["elsewhere", "after", "before"] == names[1:]
    assert options.count("ResNet-50") == options.count("in_graph") == 1
    assert "2 cores of an Other X9" in options


def test_hostile_names_are_shown_as_text(index):
    """Also within attributes."""
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in index
    assert 1 == index.count("<script>")


def test_neighbours_are_compared_or_refused_with_the_reason(site, index):
    """After and before share a page; the others say why not."""
    text = " ".join(re.sub(r"<[^>]*>", "", index).split())

    assert ["compare/after-and-before.html"] == [
        name for name in site if name.startswith("compare/")
    ]
    assert "after and before: In after, throughput is" in text
    assert "elsewhere and after are not comparable: the machines differ: proc" in text
    assert "and elsewhere are not comparable: no case was measured in both" in text


def test_history_keeps_machines_apart(index):
    """Three studies of a case, two classes of machines, none joined.

    By name alone nobody knows that two are one machine: they are of one kind.
    """
    assert re.search(r"\b2 kinds of machines\. ", index)
    history = index.split('id="history"')[1]

    assert 6 == history.count("<figure>")
    assert ">M1</text>" in history
    assert "Other X9, 2 cores" in history
    assert "4 cases left out" not in history
    assert "6 cases left out" in history


def test_equal_names_get_folders_of_their_own():
    """Also where a file system ignores letter case, and for names that are paths."""
    names = ["a", "A", "../../etc", "a", ".", "x" * 300]

    assert ["a", "A-2", "etc", "a-3", "study", "x" * 80] == card.slugs(names)


def test_a_study_that_is_named_twice_is_refused(first):
    """It would be compared with itself."""
    with pytest.raises(ResultsError, match=r"study '.*folder' is given twice; name"):
        list(build.pages([first, first], METRIC))


def test_a_file_in_the_way_of_the_site_is_kept(
    tmp_path, first, second, page_of_a_study
):
    """One line, nothing written."""
    (tmp_path / "site").write_text("mine")
    with pytest.raises(WriteStoreError, match=r"cannot write site .*not a directory"):
        build.write_site([first, second], tmp_path / "site", METRIC)

    assert "mine" == (tmp_path / "site").read_text()
