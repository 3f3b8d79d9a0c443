"""Writes a site of several studies: relative links, no scripts that load anything."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from typing import TYPE_CHECKING, Final

from markupsafe import escape

from reports import output_file
from reports.page import build, page
from reports.site import comparison
from reports.site.card import make_card, slugs
from reports.site.timeline import histories
from reports.view.view import view_store
from reports.words import formats, next_step
from results import errors

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator, Mapping, Sequence

    from reports.site.card import Card
    from reports.view.view import View
    from results.judging.gate_metrics import Metric
    from results.records.models import Plan
    from results.store.study_store import Store
    from results.study.cases import Study

INDEX: Final = "index.html"
RECORDS: Final = "records.zip"
RAW_DATA: Final = "Raw records (zip)"
"""Of a link: ``verify`` recomputes every figure from them."""
SOURCE: Final = "Source code"
_COMMIT: Final = "{commit}"
_BODY: Final = re.compile(r'<body>\n(?:<a class="skip"[^>]*>[^<]*</a>\n)?')
"""Where a page begins; a link that skips to the content stays the first of all."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two studies of one workload, one after the other."""

    first: str  # Name of the later one.
    second: str  # Name of the earlier one.
    address: str  # Of their page; empty if they are not comparable.
    text: str  # What the comparison says, or why there is none.


def pages(
    stores: Sequence[Store],
    metric: Metric,
    data: Mapping[pathlib.Path, str] | None = None,
    *,
    source_url: str = "",
) -> Iterator[tuple[str, str]]:
    """Yields the path of every page below the site's folder, and its HTML.

    The same studies give the same bytes, in whatever order they are named.
    """
    _check_different(stores)
    placed = _placed(stores)
    names = list(placed)
    loaded = [(store, view_store(store)) for store in placed.values()]
    cards = []
    for (store, view), slug in zip(loaded, names, strict=True):
        cards.append(make_card(view, slug))
        html = build.build_report(store)
        links = {"All studies": f"../../{INDEX}"}
        if data and store.root in data:
            links[RAW_DATA] = data[store.root]
        links |= source_links(view.study, source_url)
        html = with_links(html, links)
        yield f"studies/{slug}/{INDEX}", html
    views = dict(zip(names, (view for _, view in loaded), strict=True))
    compared: list[Pair] = []
    for later, earlier in _neighbours(views):
        pair, html = _compare(later, earlier, views, metric)
        compared.append(pair)
        if html:
            yield pair.address, html
    yield INDEX, _index(cards, compared, [view.study for view in views.values()])


def write_site(
    stores: Sequence[Store],
    folder: pathlib.Path,
    metric: Metric,
    records: Mapping[pathlib.Path, bytes | str] | None = None,
    *,
    source_url: str = "",
) -> pathlib.Path:
    """Writes the site and returns the path of its index."""
    records = records or {}
    data = {
        root: RECORDS if isinstance(of, bytes) else of for root, of in records.items()
    }
    written: dict[str, bytes | str] = dict(
        pages(stores, metric, data, source_url=source_url)
    )
    for slug, store in _placed(stores).items():
        content = records.get(store.root)
        if isinstance(content, bytes):
            written[f"studies/{slug}/{RECORDS}"] = content
    output_file.write_all(folder, written, what="site")
    return folder / INDEX


def source_links(study: Study, url: str) -> dict[str, str]:
    """Returns links to the code that was measured, addresses by their texts."""
    if not url or _COMMIT not in url:
        return {SOURCE: url} if url else {}
    commits = sorted(next_step.whole_commits_of(study))
    return {
        SOURCE if len(commits) == 1 else f"{SOURCE} ({commit[:12]})": url.replace(
            _COMMIT, commit
        )
        for commit in commits
    }


def with_links(html: str, links: Mapping[str, str]) -> str:
    """Returns a page with links above its content, addresses by their texts."""
    if not links:
        return html
    (begin,) = _BODY.findall(html)
    # Within the padding of the page: its first screen stays where it was.
    nav = (
        '<nav aria-label="Site" style="margin:-0.6rem 0 0.1rem;padding:0;border:0"><ul>'
        + "".join(
            f'<li><a href="{escape(address)}">{text}</a></li>'
            for text, address in links.items()
        )
        + "</ul></nav>"
    )
    return html.replace(begin, f"{begin}{nav}\n", 1)


def _check_different(stores: Sequence[Store]) -> None:
    seen: dict[pathlib.Path, Store] = {}
    for store in stores:
        root = store.root.resolve()
        if root in seen:
            raise errors.ResultsError(
                f"study {str(store.root)!r} is given twice; name each study once"
            )
        seen[root] = store


def _placed(stores: Sequence[Store]) -> dict[str, Store]:
    """Returns studies by the names of their folders, in the order of the site."""
    plans = [(store, store.read_plan()) for store in stores]
    # By what the records say: a name of a folder can be anything.
    plans.sort(key=lambda pair: _order(pair[1]))
    names = slugs([plan.study for _, plan in plans])
    return dict(zip(names, (store for store, _ in plans), strict=True))


def _order(plan: Plan) -> tuple[str, str, str]:
    ids = sorted(trial.trial_id for trial in plan.trials)
    return plan.created_at, plan.study, "".join(ids[:1])


def _neighbours(views: Mapping[str, View]) -> Iterator[tuple[str, str]]:
    """Yields each study with the one before it of the same workload and preset."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for slug, view in views.items():
        if view.study.planned:
            spec = view.study.planned[0].spec
            kinds.setdefault((spec.workload, spec.preset), []).append(slug)
    for names in kinds.values():
        yield from ((later, earlier) for earlier, later in itertools.pairwise(names))


def _compare(
    later: str, earlier: str, views: Mapping[str, View], metric: Metric
) -> tuple[Pair, str]:
    first, second = views[later].study, views[earlier].study
    names = {"first": first.plan.study, "second": second.plan.study}
    try:
        found = comparison.compare_studies(first, second, metric)
    except errors.ResultsError as error:
        return Pair(**names, address="", text=str(error)), ""
    if found.reasons:
        return Pair(**names, address="", text="; ".join(found.reasons)), ""
    address = f"compare/{later}-and-{earlier}.html"
    links = [
        ("All studies", f"../{INDEX}"),
        *(
            (f"{letter}: {views[slug].study.plan.study}", f"../studies/{slug}/{INDEX}")
            for letter, slug in (("A", later), ("B", earlier))
        ),
    ]
    html = comparison.build(found, links=links)
    return Pair(
        **names, address=address, text=comparison.headline(found, **names)
    ), html


def _index(
    cards: Sequence[Card], pairs: Sequence[Pair], studies: Sequence[Study]
) -> str:
    choices = {
        "workload": _values(card.workloads for card in cards),
        "backend": _values(card.backends for card in cards),
        "machine": _values(card.machines for card in cards),
    }
    found = page.render(
        "site",
        title="Scaling studies",
        site_style=page.asset("site.css", "site"),
        script=page.asset("site.js", "site"),
        cards=[*reversed(cards)],
        choices=choices,
        facts=", ".join(
            [
                formats.count(len(cards), "study", "studies"),
                formats.count(len(choices["workload"]), "workload"),
                formats.count(
                    len(choices["machine"]), "kind of machine", "kinds of machines"
                ),
            ]
        ),
        pairs=pairs,
        history=histories(studies),
        as_json=json.dumps,
        links=(),
    )
    return f"{found}\n"


def _values(groups: Iterator[tuple[str, ...]]) -> list[str]:
    return sorted({value for group in groups for value in group})
