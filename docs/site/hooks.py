"""Builds the site from the documents where they are, and the reference from docstrings.

MkDocs takes pages from one folder, which cannot be the project's own. Documents are in
several, beside what they describe, and point to one another and to files. So every
document is added under its own path, with the files that it points to: a link that
works on a code host then works on the site. The reference has a page for each list
below.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

from harness.cli import documents as options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "docs",
    "harness",
    "replicator",
    "reports",
    "results",
    "studies",
    "workloads",
)

# Page -> title, introduction, modules; of a package with a stub, its public names.
REFERENCE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "harness": (
        "Reference: harness",
        "The command line in a program, and what the harness knows of a machine.",
        ("harness",),
    ),
    "results": (
        "Reference: results",
        "Records on disk, and the figures that are computed from them.",
        (
            "results",
            "results.study.cases",
            "results.figures",
            "results.statistics",
            "results.judging",
        ),
    ),
    "reports": (
        "Reference: reports",
        "Pages and figures from a study.",
        (
            "reports",
            "reports.plot",
            "reports.page.page",
        ),
    ),
    "workloads": (
        "Reference: workloads",
        "What a workload implements, and what it can build on.",
        (
            "workloads.spec",
            "workloads.controls",
            "workloads.program",
            "workloads.common.training",
            "workloads.resnet50",
            "workloads.sngan",
            "workloads.data.images",
            "workloads.data.sources",
            "workloads.metrics.evaluator",
            "workloads.metrics.quality",
            "workloads.d4pg.control",
            "workloads.d4pg.pool",
            "workloads.d4pg.replay",
            "workloads.d4pg.learner",
        ),
    ),
}

_EXPORT = re.compile(r"^from (\.[\w.]+) import \(?\s*(\w+) as", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?=[)#])")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """Returns the Markdown files of the project, sorted."""
    found = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


def public_names(package: str) -> list[str]:
    """Returns the module and name of each public name of a package, by name.

    Of a module without a stub, it is the module.
    """
    stub = ROOT / package.replace(".", "/") / "__init__.pyi"
    if not stub.is_file():
        return [package]
    exports = _EXPORT.findall(stub.read_text(encoding="utf-8"))
    names = ((name, f"{package}{module}.{name}") for module, name in exports)
    return [path for _, path in sorted(names, key=lambda pair: pair[0].lower())]


def reference_pages() -> dict[str, str]:
    """Returns the text of each page of the reference, by its path on the site."""
    pages = {
        "reference/replicator.md": _reference_page(
            "Reference: replicator",
            "The public names, all imported from `replicator`.",
            public_names("replicator"),
        )
    }
    pages["reference/options.md"] = options.page()
    for name, (title, introduction, modules) in REFERENCE.items():
        names = itertools.chain.from_iterable(map(public_names, modules))
        pages[f"reference/{name}.md"] = _reference_page(title, introduction, names)
    return pages


def _reference_page(title: str, introduction: str, names: Iterable[str]) -> str:
    blocks = "\n".join(f"::: {name}\n" for name in names)
    return f"# {title}\n\n{introduction}\n\n{blocks}"


def _linked_files(document: Path) -> Iterator[Path]:
    """Yields the files that a document points to and that are no documents.

    With the page of a study, the records beside it, which it links.
    """
    text = _FENCE.sub("", document.read_text(encoding="utf-8"))
    for match in _LINK.finditer(text):
        target = (document.parent / match["target"]).resolve()
        page = page_of(target)
        if page is not None and page.suffix != ".md":
            yield page
            if (records := page.with_name("records.zip")).is_file():
                yield records


def page_of(target: Path) -> Path | None:
    """Returns what a reader sees of a file or folder; None if it is not there.

    Of a study, its report; of another folder, its document.
    """
    if not target.is_dir():
        return target if target.is_file() else None
    published = target.parent / "studies" / target.name / "index.html"
    inside = (published, target / "README.md")
    return next((path for path in inside if path.is_file()), None)


def pages_in(menu: Any) -> Iterator[str]:
    """Yields the paths in a menu."""
    if isinstance(menu, str):
        yield menu
    else:
        for entry in menu.values() if isinstance(menu, dict) else menu:
            yield from pages_in(entry)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the documents that the menu does not have."""
    names = [path.relative_to(ROOT).as_posix() for path in documents()]
    listed = set(pages_in(config.nav or []))
    missing = [name for name in names if name not in listed]
    if missing and config.nav is not None:
        config.nav.append({"More": missing})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds documents, the files that they point to, and the reference."""
    paths = set(documents())
    for document in documents():
        paths.update(_linked_files(document))
    for path in sorted(paths):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, text in reference_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Points links to folders at what is shown of them."""
    source = page.file.abs_src_path
    if source is None:
        return markdown
    folder = Path(source).parent

    def shown(match: re.Match[str]) -> str:
        target = (folder / match["target"]).resolve()
        inside = page_of(target)
        if inside is None or inside == target:
            return match["target"]
        return Path(os.path.relpath(inside, folder)).as_posix()

    return _LINK.sub(shown, markdown)
