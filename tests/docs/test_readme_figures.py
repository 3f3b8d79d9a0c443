"""The table of README is that of the study that is kept beside it."""

import re
import runpy

import published_studies
import pytest

from results.figures import comparisons, relay, scaling
from results.store.study_store import Store
from results.study.cases import load_study

STUDY = "resnet50-two-cores"
OF_PEERS = "peers-resnet50"
TABLES = [("README.md", STUDY, 6), ("workloads/peers/README.md", OF_PEERS, 16)]


@pytest.fixture(scope="module")
def study(root):
    return load_study(Store.open(published_studies.study(STUDY)))


def cells(text, head):
    table = text.partition(head)[2].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def written(estimate, digits, factor=1.0):
    """Returns an estimate and its interval as README writes them."""
    value, low, high = (
        f"{factor * number:.{digits}f}"
        for number in (estimate.value, estimate.low, estimate.high)
    )
    return value, f"[{low}, {high}]"


@pytest.mark.parametrize(("document", "folder", "fewest"), TABLES)
def test_every_figure_of_the_table_is_that_of_the_study(root, document, folder, fewest):
    """Rows in any order; one per case and mode."""
    study = load_study(Store.open(published_studies.study(folder)))
    points = {
        (p.backend, p.mode.value, p.num_replicas): p for p in scaling.points(study)
    }
    text = (root / document).read_text(encoding="utf-8")
    found = cells(text, "| backend | mode |")

    assert len(found) >= fewest
    for backend, mode, replicas, rate, speedup, efficiency in found:
        point = points[backend.strip("`"), mode, int(replicas)]
        assert " ".join(written(point.throughput, 1)) == rate
        if point.is_baseline:
            assert "baseline" == speedup
            continue
        assert " ".join(written(point.speedup, 2)) == speedup
        percent, interval = written(point.efficiency, 0, 100.0)
        assert f"{percent} % {interval}" == efficiency


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("README.md", "docs/benchmarks/README.md"),
    ],
)
def test_figures_that_a_short_document_repeats_are_those_of_the_whole(
    root, short, whole
):
    """Estimates with intervals; of README, those below "Performance"."""
    text = (root / short).read_text(encoding="utf-8")
    if short == "README.md":
        text = text.partition("## Performance")[2].partition("| study |")[0]
    repeated = set(re.findall(r"\d[\d.,]* s? ?\[[^\]]+\](?!\()", text))

    assert len(repeated) > 2
    kept = (root / whole).read_text(encoding="utf-8")
    assert [] == sorted(figure for figure in repeated if figure not in kept)


def test_the_primary_contrast_and_the_twin_are_those_of_the_study(root, study):
    """The two ratios of the text below the table."""
    text = (root / "README.md").read_text(encoding="utf-8")
    primary = study.plan.measuring.primary
    cases = {case.case_id: case for case in study.cases}
    ratio = scaling.throughput_ratio(
        cases[primary.first_case_id], cases[primary.second_case_id]
    )
    twin = relay.twin_of(study)

    for estimate in (ratio, twin.ratio):
        assert re.search(re.escape(" ".join(written(estimate, 2))), text)


def test_ratios_of_peers_are_those_of_their_study(root):
    """Each pair of backends at each size, and the twin."""
    study = load_study(Store.open(published_studies.study(OF_PEERS)))
    text = (root / "workloads/peers/README.md").read_text(encoding="utf-8")
    found = {row[0]: row[1:] for row in cells(text, "| throughput | 1 replica |")}
    expected = {}
    for pair in comparisons.of_study(study):
        assert pair.ratio is not None
        name = f"`{pair.first.spec.backend}` / `{pair.second.spec.backend}`"
        expected.setdefault(name, []).append(" ".join(written(pair.ratio, 2)))

    assert expected == found
    assert " ".join(written(relay.twin_of(study).ratio, 2)) in text
    # What of the lead is there with one replica, where nothing is shared or sent.
    lead, short = expected["`in_graph` / `tf_mirrored`"], "docs/benchmarks/README.md"
    assert f"With one replica it is {lead[0]} " in (root / "README.md").read_text()
    assert f"is {lead[0]}, with two {lead[1]}," in (root / short).read_text()


def test_the_table_of_workloads_is_that_of_their_studies(root):
    """All but that of peers; efficiency, ratio of backends, and the twin."""
    text = (root / "README.md").read_text(encoding="utf-8")
    found = {row[0]: row[1:] for row in cells(text, "| study | `in_graph`, weak |")}
    kept = [
        published_studies.study(name)
        for name in published_studies.NAMES
        if name != OF_PEERS
    ]

    assert len(kept) == len(found) >= 3
    for folder in kept:
        study = load_study(Store.open(folder))
        points = {
            (p.backend, p.mode.value, p.num_replicas): p for p in scaling.points(study)
        }
        expected = []
        for mode in ("weak", "strong"):
            pair = [points[name, mode, 2] for name in ("in_graph", "tf_mirrored")]
            for point in pair:
                percent, interval = written(point.efficiency, 0, 100.0)
                expected.append(f"{percent} % {interval}")
            ratio = scaling.throughput_ratio(pair[0].case, pair[1].case)
            expected.append(" ".join(written(ratio, 2)))
        expected.append(" ".join(written(relay.twin_of(study).ratio, 2)))
        page = f"(docs/reports/studies/{folder.name}/index.html)"
        (row,) = (row for name, row in found.items() if page in name)
        assert expected == row


def test_the_picture_of_readme_is_as_old_as_its_page(root):
    """It carries the digest of what it shows; another page has another one."""
    writer = runpy.run_path(str(root / "tests/browser/write_picture.py"))
    page = writer["PAGE"].read_text(encoding="utf-8")
    shown = writer["digest_of"](page)

    assert shown == writer["digest_in"](writer["PICTURE"]), (
        "stale: run python tests/browser/write_picture.py"
    )
    assert shown != writer["digest_of"](page.replace("generations", "sweeps"))
    with pytest.raises(ValueError, match="the page has no"):
        writer["digest_of"]("<p>another page</p>")
