"""What the documents point to exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "harness", "replicator", "reports", "results", "workloads")
PATHS = sorted(
    [*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))]
)

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_FILE = re.compile(
    r"`(?P<target>[A-Za-z_.][\w./-]*/[\w.-]+\.(py|md|json|toml|yaml|j2|css|svg|png))`"
)
# Made by a run, so not in the tree.
_MADE = ("runs/", "report/")


def targets_in(text):
    """Returns relative link targets, and files named in backquotes by their path."""
    prose = _FENCE.sub("", text)
    links = [m["target"].partition("#")[0] for m in _LINK.finditer(prose)]
    files = [m["target"] for m in _FILE.finditer(prose)]
    return [
        target
        for target in (*links, *files)
        if target and ":" not in target and not target.startswith(_MADE)
    ]


def missing_targets(text, folder):
    """Returns the targets that are neither beside the document nor below the root."""
    return [
        target
        for target in targets_in(text)
        if not (folder / target).exists() and not (ROOT / target).exists()
    ]


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_what_a_document_points_to_exists(path):
    """In the tree: a path that only its author has is of no use to a reader."""
    text = path.read_text(encoding="utf-8")

    assert [] == missing_targets(text, path.parent)
    assert [] == re.findall(r"(?<![\w.])/(?:home|root|work|tmp|Users)/\S*", text)


def test_every_section_of_the_report_is_in_its_document():
    """In reading order."""
    package = ROOT / "reports" / "page" / "sections" / "__init__.py"
    order = package.read_text(encoding="utf-8").partition("SECTIONS = (")[2]
    sections = re.findall(r'^    Section\(".+", "(.+)", (\w+)\.', order, re.MULTILINE)
    document = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")

    assert len(sections) > 1
    listed = r"^\| `([\w-]+)`, `(\w+)\.py` \|"
    assert sections == re.findall(listed, document, re.MULTILINE)
