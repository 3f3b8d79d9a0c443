"""The documentation site: built offline, with every link, and without addresses."""

from __future__ import annotations

import html.parser
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

import harness
import replicator
import reports
import results
from results import figures, judging, statistics

ROOT = Path(__file__).resolve().parents[2]
# What a browser loads by itself; a link that a reader follows is no such attribute.
LOADED = {
    ("img", "src"),
    ("script", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "srcset"),
}

pytestmark = pytest.mark.processes


class Page(html.parser.HTMLParser):
    """The ids of a page, what it loads, and where its links lead."""

    def __init__(self, text):
        super().__init__()
        self.text = text
        self.ids = set()
        self.loaded = []
        self.links = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif (tag, name) in LOADED and value:
                self.loaded.append(value)
            elif tag == "a" and name == "href" and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def hooks():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "site" / "hooks.py")))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, as ``make docs`` writes it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """The pages of documents: those of studies have tests of their own."""
    paths = [p for p in site.rglob("*.html") if "report" not in p.parts]
    return {p: Page(p.read_text(encoding="utf-8")) for p in paths}


def test_every_document_is_a_page(site, hooks):
    """Under the path that it has in the tree."""
    documents = hooks.documents()

    assert len(documents) > 30
    for document in documents:
        path = document.relative_to(ROOT).with_suffix(".html")
        path = path.with_name(path.name.replace("README", "index"))
        assert (site / path).is_file(), path


def test_every_link_leads_somewhere(site, pages):
    """Files and anchors, whatever made them: documents, menus, docstrings."""
    dead = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link) or path.name == "404.html":
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name).resolve() if name else path
            target = target / "index.html" if target.is_dir() else target
            ids = pages[target].ids if target in pages else {anchor}
            if not target.is_file() or (anchor and anchor not in ids):
                dead.append(f"{path.relative_to(site)}: {link}")

    assert [] == dead


def test_nothing_is_loaded_from_elsewhere(site, pages):
    """Fonts, scripts and images are in the site; a style sheet could load a font."""
    loaded = {link for page in pages.values() for link in page.loaded}
    sheets = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]

    assert len(loaded) > 1
    assert [] == [link for link in loaded if re.match(r"([a-z]+:)?//", link)]
    assert sheets
    assert [] == [s for s in sheets if re.search(r"url\([\"']?(https?:)?//", s)]


@pytest.mark.parametrize(
    "package",
    [replicator, harness, results, figures, judging, statistics, reports],
    ids=lambda package: package.__name__,
)
def test_the_reference_has_every_public_name(site, hooks, package):
    """With its docstring, read from the source."""
    name, _, _ = package.__name__.partition(".")
    page = (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
    paths = hooks.public_names(package.__name__)
    modules = {"plot"}  # of functions, which are on the page as well

    assert {path.rpartition(".")[2] for path in paths} == {*package.__all__} - modules
    for path in paths:
        assert f'id="{path}"' in page, path
    first_lines = {
        "harness": "Runs a command line in this process, as ",
        "replicator": "Runs a single-device step function on many replicas.",
        "results": "Returns every number of the report, one per row.",
        "reports": "Draws ratios of throughput between backends, with intervals.",
    }
    assert first_lines[name] in page


def test_pages_have_lists_and_no_path_of_this_machine(pages):
    """Code hosts begin a list without a blank line; MkDocs would write it as text."""
    for path, page in pages.items():
        wrong = [
            paragraph[:80]
            for paragraph in re.findall(r"<p>(.*?)</p>", page.text, re.DOTALL)
            if re.search(r"^(?:- |\d+\. |\| )", paragraph, re.MULTILINE)
        ]

        assert [] == wrong, path.name
        assert str(ROOT) not in page.text, path.name
