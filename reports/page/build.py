"""Builds the report: a pure function of the store, one offline HTML file."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from reports import output_file
from reports.page import page, plugin_sections
from reports.page.sections import SECTIONS
from reports.view.view import view_store
from reports.words import brief, names, next_step

if TYPE_CHECKING:
    from results.store.study_store import Store


def build_report(store: Store) -> str:
    """Returns the report of a study as HTML; the same store gives the same bytes."""
    view = view_store(store)
    sections = [
        {"slug": section.SLUG, "title": section.TITLE, "body": body}
        for section in SECTIONS
        if (body := section.render(view))
    ]
    sections += plugin_sections.render(view, [section.SLUG for section in SECTIONS])
    commits = sorted(next_step.commits_of(view.study.cases))
    document = page.render(
        "page",
        view=view,
        sections=sections,
        title=names.title(view),
        summary=brief.judge(view).text,
        commits=", ".join(commits) or "not recorded",
        names=names,
    )
    return f"{document}\n"


def write_report(store: Store, path: pathlib.Path | None = None) -> pathlib.Path:
    """Writes the report and returns its path (default: in the study's directory)."""
    path = store.report_path if path is None else pathlib.Path(path)
    output_file.write(path, build_report(store), what="report")
    return path
