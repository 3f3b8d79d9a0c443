"""Writes a site of several studies: relative links, no scripts that load anything.

Its index has a card of each study, their comparisons, and the history of each case.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import escape

from reports import output_file
from reports.charts import over_replicas, svg
from reports.page import build, page
from reports.site import comparison
from reports.site.card import day, make_card, slugs
from reports.view import view_store
from reports.words import formats, next_step
from results import errors
from results.figures.history import history

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from markupsafe import Markup

    from reports.site.card import Card
    from results.figures.history import Observation, Series
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
MOST_CHARTS: Final = 40
_FEWEST: Final = 2
_NUM_COLORS: Final = 8
_BODY: Final = re.compile(r'<body>\n(?:<a class="skip"[^>]*>[^<]*</a>\n)?')
"""Where a page begins; a link that skips to the content stays the first of all."""


class Pair(NamedTuple):
    """Two studies of one workload, one after the other."""

    first: str  # Name of the later one.
    second: str  # Name of the earlier one.
    text: str  # What the comparison says, or why there is none.
    address: str = ""  # Of their page; empty if they are not comparable.


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
    roots = [store.root.resolve() for store in stores]
    for place, store in enumerate(stores):
        if roots[place] in roots[:place]:
            raise errors.ResultsError(
                f"study {str(store.root)!r} is given twice; name each study once"
            )
    views = {slug: view_store(store) for slug, store in _placed(stores).items()}
    cards = []
    for slug, view in views.items():
        cards.append(make_card(view, slug))
        links = {"All studies": f"../../{INDEX}"}
        if data and view.store.root in data:
            links[RAW_DATA] = data[view.store.root]
        links |= source_links(view.study, source_url)
        html = with_links(build.build_report(view.store), links)
        yield f"studies/{slug}/{INDEX}", html
    studies = {slug: view.study for slug, view in views.items()}
    pairs: list[Pair] = []
    for later, earlier in _neighbours(studies):
        pair, html = _compare(later, earlier, studies, metric)
        pairs.append(pair)
        if html:
            yield pair.address, html
    yield INDEX, _index(cards, pairs, [*studies.values()])


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
    items = "".join(
        f'<li><a href="{escape(address)}">{text}</a></li>'
        for text, address in links.items()
    )
    # Within the padding of the page: its first screen stays where it was.
    nav = (
        '<nav aria-label="Site" style="margin:-0.6rem 0 0.1rem;padding:0;border:0">'
        f"<ul>{items}</ul></nav>"
    )
    return html.replace(begin, f"{begin}{nav}\n", 1)


def _placed(stores: Sequence[Store]) -> dict[str, Store]:
    """Returns studies by the names of their folders, in the order of the site."""

    def order(pair: tuple[Store, Plan]) -> tuple[str, str, str]:
        # By what the records say: a name of a folder can be anything.
        plan = pair[1]
        ids = (trial.trial_id for trial in plan.trials)
        return plan.created_at, plan.study, min(ids, default="")

    plans = sorted(((store, store.read_plan()) for store in stores), key=order)
    names = slugs([plan.study for _, plan in plans])
    return dict(zip(names, (store for store, _ in plans), strict=True))


def _neighbours(studies: Mapping[str, Study]) -> Iterator[tuple[str, str]]:
    """Yields each study with the one before it of the same workload and preset."""
    kinds = formats.grouped(
        ((study.planned[0].spec.workload, study.planned[0].spec.preset), slug)
        for slug, study in studies.items()
        if study.planned
    )
    for names in kinds.values():
        yield from ((later, earlier) for earlier, later in itertools.pairwise(names))


def _compare(
    later: str, earlier: str, studies: Mapping[str, Study], metric: Metric
) -> tuple[Pair, str]:
    first, second = studies[later], studies[earlier]
    names = first.plan.study, second.plan.study
    try:
        found = comparison.compare_studies(first, second, metric)
    except errors.ResultsError as error:
        return Pair(*names, str(error)), ""
    if found.reasons:
        return Pair(*names, "; ".join(found.reasons)), ""
    links = [("All studies", f"../{INDEX}")]
    for letter, slug in (("A", later), ("B", earlier)):
        name = studies[slug].plan.study
        links.append((f"{letter}: {name}", f"../studies/{slug}/{INDEX}"))
    address = f"compare/{later}-and-{earlier}.html"
    pair = Pair(*names, comparison.headline(found, *names), address)
    return pair, comparison.build(found, links=links)


def _index(
    cards: Sequence[Card], pairs: Sequence[Pair], studies: Sequence[Study]
) -> str:
    choices = {
        name: sorted({value for card in cards for value in getattr(card, f"{name}s")})
        for name in ("workload", "backend", "machine")
    }
    counts = (
        formats.count(len(cards), "study", "studies"),
        formats.count(len(choices["workload"]), "workload"),
        formats.count(len(choices["machine"]), "kind of machine", "kinds of machines"),
    )
    found = page.render(
        "site",
        title="Scaling studies",
        site_style=page.asset("site.css", "site"),
        script=page.asset("site.js", "site"),
        cards=[*reversed(cards)],
        choices=choices,
        facts=", ".join(counts),
        pairs=pairs,
        history=histories(studies),
        as_json=json.dumps,
        links=(),
    )
    return f"{found}\n"


class CaseHistory(NamedTuple):
    """One case over time."""

    title: str  # Workload, preset and case.
    unit: str  # Of its throughput.
    drawing: Markup  # Its chart.
    # Of the table: date, study, commit, throughput, interval, machine.
    rows: list[tuple[str, ...]]
    machines: list[tuple[str, str]]  # The machine classes: letter and words.


class Histories(NamedTuple):
    """The history of all cases."""

    cases: list[CaseHistory]  # Those with two or more studies, most studies first.
    num_single: int  # How many cases have one study only.
    num_left_out: int  # How many cases have no chart because there are too many.
    reasons: tuple[str, ...]  # Why cases have no place in any series, one line each.


def histories(studies: Iterable[Study]) -> Histories:
    """Returns the history of every case that two or more studies have."""
    found = history(studies)
    by_case = formats.grouped((series.case_key, series) for series in found.series)

    def num_studies(segments: Sequence[Series]) -> int:
        return sum(len(of.observations) for of in segments)

    several = [of for of in by_case.values() if num_studies(of) >= _FEWEST]
    several.sort(key=num_studies, reverse=True)
    shown = several[:MOST_CHARTS]
    return Histories(
        cases=[_case(segments, place) for place, segments in enumerate(shown)],
        num_single=len(by_case) - len(several),
        num_left_out=len(several) - len(shown),
        reasons=found.left_out,
    )


def _letter(place: int) -> str:
    return f"M{place + 1}"


def _case(segments: Sequence[Series], index: int) -> CaseHistory:
    """Joins the segments of one case: one per machine class, in order of time."""
    ordered = sorted(segments, key=lambda of: of.observations[0].date)
    seen = sorted(
        (
            (observation, place)
            for place, series in enumerate(ordered)
            for observation in series.observations
        ),
        key=lambda pair: (pair[0].date, pair[0].study),
    )
    title = f"{ordered[0].workload} {ordered[0].preset}, {ordered[0].case}"
    lines = [
        over_replicas.Line(
            label=_letter(machine) if len(ordered) > 1 else "",
            series=machine % _NUM_COLORS,
            is_joined=False,
            dots=tuple(_dot(x, of) for x, (of, at) in enumerate(seen) if at == machine),
        )
        for machine in range(len(ordered))
    ]
    described = (f"{of.study}: {_figure(of)}" for of, _ in seen)
    return CaseHistory(
        title=title,
        unit=seen[0][0].throughput.unit,
        drawing=over_replicas.draw_over_time(
            lines,
            dates=_labels([of.date for of, _ in seen]),
            slug=f"history-{index}",
            title=f"Throughput of {title} over time",
            description="; ".join(described),
        ),
        rows=[
            (
                formats.minute(of.date),
                of.study,
                of.commit or formats.ABSENT,
                _figure(of),
                formats.interval(
                    of.throughput.low, of.throughput.high, formats.significant
                ),
                _letter(place),
            )
            for of, place in seen
        ],
        machines=[
            (_letter(place), f"{series.machine_name} ({series.machine[:8]})")
            for place, series in enumerate(ordered)
        ],
    )


def _figure(seen: Observation) -> str:
    return f"{formats.significant(seen.throughput.value)} {seen.throughput.unit}"


def _labels(dates: Sequence[str]) -> list[str]:
    """Returns what tells dates apart: days of a year, or minutes of one day."""
    is_one_day = len({day(date) for date in dates}) == 1
    part = slice(len("2026-01-01T"), len("2026-01-01T00:00"))
    if not is_one_day:
        part = slice(len("2026-"), len("2026-01-01"))
    return [date[part] for date in dates]


def _dot(x: int, seen: Observation) -> over_replicas.Dot:
    figure = seen.throughput
    tip = svg.of_value(
        f"{seen.study}, {day(seen.date)}",
        figure.value,
        formats.significant,
        interval=(figure.low, figure.high),
        n=figure.n,
        unit=figure.unit,
    )
    return over_replicas.Dot(
        x=x, value=figure.value, low=figure.low, high=figure.high, tip=tip
    )
