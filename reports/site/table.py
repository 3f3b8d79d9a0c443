"""The index of several studies as text, Markdown and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from reports.site.card import make_card, slugs
from reports.view.view import view_store
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reports.site.card import Card
    from results.store.study_store import Store

COLUMNS: Final = ("study", "workload", "date", "efficiency", "trials")


def _cards(stores: Sequence[Store]) -> list[Card]:
    views = sorted(map(view_store, stores), key=lambda view: view.study.plan.created_at)
    names = slugs([view.study.plan.study for view in views])
    return [make_card(*pair) for pair in zip(views, names, strict=True)]


def _efficiency(card: Card) -> str:
    return "; ".join(f"{of.text} ({of.note})" for of in card.sparks) or formats.ABSENT


def as_text(stores: Sequence[Store]) -> str:
    """Writes a paragraph per study, oldest first."""
    return "\n\n".join(
        f"{card.name}: {card.title}, {card.date}, {card.trials}\n"
        f"  {_efficiency(card)}\n  {card.verdict}"
        for card in _cards(stores)
    )


def as_markdown(stores: Sequence[Store]) -> str:
    """Writes a table with a row per study, oldest first."""
    rows = [
        (card.name, card.title, card.date, _efficiency(card), card.trials)
        for card in _cards(stores)
    ]
    return "\n".join(formats.markdown_table(COLUMNS, rows))


def as_json(stores: Sequence[Store]) -> str:
    """Writes what the index says as data."""
    data: list[dict[str, Any]] = [
        {
            "study": card.name,
            "workloads": card.workloads,
            "backends": card.backends,
            "machines": card.machines,
            "date": card.date,
            "trials": card.trials,
            "verdict": card.verdict,
        }
        for card in _cards(stores)
    ]
    return json.dumps(data, indent=2)


WRITERS: Final[dict[str, Callable[[Sequence[Store]], str]]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
