"""Builds the report: a pure function of the store, one offline HTML file."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from reports import names, page
from reports.sections import SECTIONS
from reports.view import view_store
from results import atomic, errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.store import Store


def build_report(store: Store, references: Sequence[str] = ()) -> str:
    """Returns the report of a study as HTML; the same store gives the same bytes.

    Args:
      store: The study.
      references: Files of published figures to show, their names in
        ``reports/references``, or "none"; by default those of this project for studies
        on GPUs.

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory, or references
        cannot be used.
    """
    view = view_store(store, references)
    sections = [
        {"slug": section.SLUG, "title": section.TITLE, "body": body}
        for section in SECTIONS
        if (body := section.render(view))
    ]
    document = page.render(
        "page", view=view, sections=sections, title=names.title(view), names=names
    )
    return f"{document}\n"


def write_report(
    store: Store,
    path: pathlib.Path | None = None,
    *,
    references: Sequence[str] = (),
) -> pathlib.Path:
    """Writes the report and returns its path (default: in the study's directory).

    Args:
      store: The study.
      path: The file.
      references: As ``build_report`` takes them.

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory, or references
        cannot be used.
      WriteStoreError: ``path`` cannot be written.
    """
    path = store.report_path if path is None else pathlib.Path(path)
    if path.exists() and not path.is_file():
        raise errors.WriteStoreError(
            f"cannot write report {str(path)!r}: it is not a regular file, and would "
            "be replaced by one; choose another"
        )
    text = build_report(store, references)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, text)
    except OSError as error:
        raise errors.WriteStoreError(
            f"cannot write report {str(path)!r}: {error.strerror or error}; choose a "
            "file in a folder that this user can write to"
        ) from error
    return path
