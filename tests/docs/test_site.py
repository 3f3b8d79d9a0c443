"""The documentation site: built offline, with every link, and without addresses."""

from __future__ import annotations

import html.parser
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

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
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif (tag, name) in LOADED and value:
                self.loaded.append(value)
            elif tag == "a" and name == "href" and value:
                self.links.append(value)


def build(folder, *arguments):
    return subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict"),
            *("--site-dir", str(folder), *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=240,
    )


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location(
        "site_hooks", ROOT / "docs" / "site" / "hooks.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, as ``make docs`` writes it."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
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


def test_no_page_loads_anything_from_elsewhere(pages):
    """Fonts, scripts and images are in the site."""
    loaded = {link for page in pages.values() for link in page.loaded}

    assert len(loaded) > 1
    assert [] == [link for link in loaded if re.match(r"([a-z]+:)?//", link)]


def test_the_style_sheets_load_nothing_from_elsewhere(site):
    """A font would be requested by a style sheet."""
    sheets = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]

    assert sheets
    assert [] == [s for s in sheets if re.search(r"url\([\"']?(https?:)?//", s)]


def test_the_reference_has_every_public_name(site, hooks):
    """With its docstring, read from the source."""
    import replicator

    page = (site / "reference" / "replicator.html").read_text(encoding="utf-8")
    names = {path.rpartition(".")[2] for path in hooks.public_names()}

    assert set(replicator.__all__) == names
    for path in hooks.public_names():
        assert f'id="{path}"' in page, path
    assert "Runs a single-device step function on many replicas." in page


def test_lists_of_documents_are_lists_on_the_site(pages):
    """Code hosts begin a list without a blank line; MkDocs would write it as text."""
    wrong = [
        f"{path.name}: {paragraph[:80]!r}"
        for path in pages
        for paragraph in re.findall(r"<p>(.*?)</p>", path.read_text(), re.DOTALL)
        if re.search(r"^(?:- |\d+\. |\| )", paragraph, re.MULTILINE)
    ]

    assert [] == wrong


def test_the_site_shows_no_path_of_this_machine(pages):
    """Neither of the documents nor of the source."""
    found = [p.name for p in pages if str(ROOT) in p.read_text(encoding="utf-8")]

    assert [] == found
