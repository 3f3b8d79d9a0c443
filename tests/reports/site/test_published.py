"""The site under docs/reports is what the records beside it give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import covering
import pytest

from reports.site import build
from reports.words import reproduce
from results.judging import gate_metrics
from results.store.study_store import Store
from results.study.cases import load_study

MOST_BYTES_OF_A_STUDY = 8_000_000  # D4PG has 60 steps a second, and each is kept
DRAWN = "resnet50-two-cores"
"""The study whose page is built in every run."""
NOT_DRAWN = "<!DOCTYPE html>\n<html>\n<body>\nLEFT OUT\n</body>\n</html>\n"
AGAIN = (
    "write it again: python -m harness report --runs-dir docs/reports NAMES -o "
    "docs/reports, with the names of all its studies"
)


@pytest.fixture(scope="module")
def published() -> Path:
    """The folder of the site, and of its studies."""
    return Path(__file__).resolve().parents[3] / "docs" / "reports"


@pytest.fixture(scope="module")
def studies(published: Path) -> list[Store]:
    """Every study in it."""
    return [Store.open(plan.parent) for plan in sorted(published.glob("*/plan.json"))]


@pytest.fixture(scope="module")
def site(studies: list[Store]) -> dict[str, str]:
    """Its pages, built from the records now; figures of one study only, or of all."""
    report = build.build.build_report

    def build_report(store: Store, *args: Any) -> str:
        return report(store, *args) if store.root.name == DRAWN else NOT_DRAWN

    with pytest.MonkeyPatch.context() as patch:
        if not covering.is_full():
            patch.setattr(build.build, "build_report", build_report)
        data = {store.root: build.RECORDS for store in studies}
        return dict(build.pages(studies, gate_metrics.THROUGHPUT, (), data))


@pytest.fixture(scope="module")
def drawn(site: dict[str, str]) -> dict[str, str]:
    """Those pages of it that were built: the index, and one study or all of them."""
    pages = {name: page for name, page in site.items() if "\nLEFT OUT\n" not in page}
    assert {"index.html", f"studies/{DRAWN}/index.html"} <= set(pages)
    assert not covering.is_full() or pages == site
    return pages


def test_the_published_pages_are_those_that_the_records_give(
    published: Path, site: dict[str, str], drawn: dict[str, str]
) -> None:
    """Byte for byte, with no page too few and none too many.

    The full run builds the pages of all studies, each of which draws the same figures.
    """
    found = {
        path.relative_to(published).as_posix(): path.read_bytes()
        for path in published.rglob("*.html")
    }

    assert sorted(site) == sorted(found), AGAIN
    changed = [name for name, page in drawn.items() if page.encode() != found[name]]
    assert [] == changed, AGAIN


def test_pages_of_studies_have_one_place_for_the_link(drawn: dict[str, str]) -> None:
    """After the link that skips to the content, which is the first of every page."""
    skip = '<a class="skip" href="#verdict">Skip to the verdict</a>'
    pages = [page for name, page in drawn.items() if name.startswith("studies/")]

    assert pages
    for page in pages:
        assert 1 == page.count(f'<body>\n{skip}\n<nav aria-label="Site"')


def test_a_page_that_was_changed_by_hand_would_be_noticed(
    site: dict[str, str],
) -> None:
    """Every figure of the verdict is in the page that is compared."""
    index = site["index.html"]
    verdicts = [line for line in index.splitlines() if " efficiency on " in line]

    assert verdicts
    assert all("%" in verdict for verdict in verdicts)


def test_what_is_published_of_a_study_is_small(studies: list[Store]) -> None:
    """Records and observations, no logs: a clone has them all."""
    for store in studies:
        files = [path for path in store.root.rglob("*") if path.is_file()]
        kinds = {path.suffix for path in files}

        assert sum(path.stat().st_size for path in files) <= MOST_BYTES_OF_A_STUDY
        assert kinds <= {".json", ".jsonl", ".png"}, store.root.name


def test_a_page_says_whose_it_is_without_a_click(
    published: Path, studies: list[Store]
) -> None:
    """Project, backends in words, licence, commit, citation, preview, records."""
    for store in studies:
        path = published / "studies" / store.root.name / "index.html"
        page = path.read_text(encoding="utf-8")
        closed = re.sub(r"<details(?! open).*?</details>", "", page, flags=re.DOTALL)
        commits = reproduce.commits_of(load_study(store).cases)

        assert "TF-Replicator (Buchlovsky et al. 2019)" in closed
        assert "tf.distribute.MirroredStrategy with the stock Keras update" in closed
        assert "(Apache-2.0)" in closed
        assert commits
        assert all(f"<code>{commit}</code>" in closed for commit in commits)
        assert f"@misc{{{store.root.name}," in closed
        assert '<meta property="og:description" content="With caution' in page
        assert '<a href="records.zip">' in closed
