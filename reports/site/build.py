"""Writes a site of several studies: relative links, no scripts that load anything.

Its index has a row of each study, their comparisons, and the history of each case.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reports import output_file
from reports.charts import bars
from reports.charts.rows import known
from reports.page import build, page
from reports.site import comparison
from reports.site.card import make_card, placed
from reports.view import series_of, view_store
from reports.words import formats
from reports.words.names import committed
from results import errors
from results.figures import frame as frame_lib
from results.figures import scaling
from results.records import identity
from results.store import studies as studies_lib
from results.study.cases import load_study

if TYPE_CHECKING:
    import pathlib

    import pandas as pd
    from markupsafe import Markup

    from reports.site.card import Card
    from results.judging.gate_metrics import Metric
    from results.records.models import Environment
    from results.statistics.estimates import Estimate
    from results.store.study_store import Store
    from results.study.cases import Case, Study

INDEX: Final = "index.html"
RECORDS: Final = "records.zip"
RAW_DATA: Final = "Raw records (zip)"
"""Of a link: ``verify`` recomputes every figure from them."""
SOURCE: Final = "Source code"
_COMMIT: Final = "{commit}"
MOST_CHARTS: Final = 40
_FEWEST: Final = 2
_NUM_COLORS: Final = 8


class Pair(NamedTuple):
    """Two studies of one workload, one after the other."""

    first: str  # Name of the later one.
    second: str  # Name of the earlier one.
    text: str  # What the comparison says, or why there is none.
    address: str = ""  # Of their page; empty if they are not comparable.


def pages(
    stores: Sequence[Store],
    metric: Metric,
    records: Mapping[pathlib.Path, bytes | str] | None = None,
    *,
    source_url: str = "",
) -> Iterator[tuple[str, bytes | str]]:
    """Yields the path of every file below the site's folder, and its content.

    ``records`` are those of studies by their folders: a zip, or its address.
    """
    roots = [store.root.resolve() for store in stores]
    for index, store in enumerate(stores):
        if roots[index] in roots[:index]:
            raise errors.ResultsError(
                f"study {str(store.root)!r} is given twice; name each study once"
            )
    views = {slug: view_store(store) for slug, store in placed(stores).items()}
    cards = []
    for slug, view in views.items():
        cards.append(make_card(view, slug))
        links = {"All studies": f"../../{INDEX}"}
        if (record := (records or {}).get(view.store.root)) is not None:
            links[RAW_DATA] = record if isinstance(record, str) else RECORDS
        if isinstance(record, bytes):
            yield f"studies/{slug}/{RECORDS}", record
        links |= source_links(view.study, source_url)
        yield f"studies/{slug}/{INDEX}", build.page_of(view, links)
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
    """Writes a page of each study, their comparisons and an index; returns its path.

    ``records`` are those of studies by their folders: a zip, or its address, and
    ``source_url`` links the code, with ``{commit}`` where its commit goes. Raises
    WriteStoreError where a file cannot be written.
    """
    written = dict(pages(stores, metric, records, source_url=source_url))
    output_file.write_all(folder, written, what="site")
    return folder / INDEX


def source_links(study: Study, url: str) -> dict[str, str]:
    """Returns links to the code that was measured, addresses by their texts."""
    if not url or _COMMIT not in url:
        return {SOURCE: url} if url else {}
    states = committed((*study.cases, *study.other_revisions))
    commits = sorted({str(state.git_commit) for state in states})
    return {
        SOURCE if len(commits) == 1 else f"{SOURCE} ({commit[:12]})": url.replace(
            _COMMIT, commit
        )
        for commit in commits
    }


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
        compared = comparison.compare_studies(first, second, metric)
    except errors.ResultsError as error:
        return Pair(*names, str(error)), ""
    if compared.reasons:
        return Pair(*names, "; ".join(compared.reasons)), ""
    links = [("All studies", f"../{INDEX}")]
    for letter, slug in (("A", later), ("B", earlier)):
        name = studies[slug].plan.study
        links.append((f"{letter}: {name}", f"../studies/{slug}/{INDEX}"))
    address = f"compare/{later}-and-{earlier}.html"
    pair = Pair(*names, comparison.headline(compared, *names), address)
    return pair, comparison.comparison_page(compared, links=links)


def _index(
    cards: Sequence[Card], pairs: Sequence[Pair], studies: Sequence[Study]
) -> str:
    workloads = {name for card in cards for name in card.workloads}
    machines = {name for card in cards for name in card.machines}
    counts = (
        formats.count(len(cards), "study", "studies"),
        formats.count(len(workloads), "workload"),
        formats.count(len(machines), "kind of machine", "kinds of machines"),
    )
    html = page.render(
        "site",
        title="Scaling studies",
        site_style=page.asset("site.css", "site"),
        site_script=page.asset("site.js", "site"),
        cards=[*reversed(cards)],
        facts=", ".join(counts),
        pairs=pairs,
        addresses=json.dumps(
            {
                f"{pair.first}\n{pair.second}": pair.address
                for pair in pairs
                if pair.address
            }
        ),
        history=histories(studies),
        links=(),
    )
    return f"{html}\n"


# A case of a history is all of a spec but these, on a class of machines.

_OWN_PACKAGE = "replicator-harness"
_NOT_CASE = {
    "schema_version",
    "code_digest",
    "repetition_index",
    "seed",
    "num_measured_steps",
    "is_evaluated",
}


class Observation(NamedTuple):
    """What one study measured of a case."""

    workload: str
    preset: str
    label: str  # Backend, replicas and batch, in words.
    case_key: str  # Digest of all that the case is; equal on all machines.
    date: str  # Start of its first trial, RFC 3339, UTC.
    study: str
    machine: str  # The machine class, a digest.
    machine_name: str  # CPU, cores and GPUs, in words.
    commit: str  # Empty if unknown.
    throughput: Estimate


def machine_class(env: Environment) -> str:
    """Returns a digest of what must match: not this package, whose version changes."""
    packages = {k: v for k, v in env.packages.items() if k != _OWN_PACKAGE}
    return identity.digest(env.machine_facts | {"packages": packages})


def history(studies: Iterable[Study]) -> tuple[list[Observation], list[str]]:
    """Returns the cases of studies over time, and why others have no place.

    Cases are observed once a study, in order of case, date and study; a machine class
    is whatever must match: processor, kernel, libraries. A case of several classes, or
    without a trial that is ok, is left out with a line that says so.
    """
    observations, left_out = [], []
    for study in studies:
        for case in study.cases:
            machines = {machine_class(env) for env in case.environments}
            if case.ok_entries and len(machines) == 1:
                observations.append(_observe(study, case, *machines))
                continue
            reason = f"its trials ran on {len(machines)} machine classes"
            reason = reason if case.ok_entries else "no trial is ok"
            left_out.append(f"{study.plan.study}, {case.label}: {reason}")
    return sorted(observations, key=lambda each: each[:7]), left_out


def _observe(study: Study, case: Case, machine: str) -> Observation:
    throughput = scaling.case_cell(case, "throughput").estimate
    assert throughput is not None
    starts = [
        entry.status.started_at for entry in case.ok_entries if entry.status is not None
    ]
    commits = {
        "" if env.machine_state is None else env.machine_state.commit_text
        for env in case.environments
    }
    return Observation(
        workload=case.spec.workload,
        preset=case.spec.preset,
        label=case.label,
        case_key=identity.digest(case.spec_without(_NOT_CASE)),
        date=min(starts),
        study=study.plan.study,
        machine=machine,
        machine_name=case.environments[0].machine_name,
        commit=commits.pop() if len(commits) == 1 else "several",
        throughput=throughput,
    )


def histories(studies: Iterable[Study]) -> dict[str, Any]:
    observations, left_out = history(studies)
    by_case = formats.grouped((each.case_key, each) for each in observations)
    several = [each for each in by_case.values() if len(each) >= _FEWEST]
    several.sort(key=len, reverse=True)
    return {
        "cases": [*map(_case, several[:MOST_CHARTS])],
        "num_single": len(by_case) - len(several),
        "num_left_out": max(0, len(several) - MOST_CHARTS),
        "reasons": left_out,
    }


def _case(seen: Sequence[Observation]) -> dict[str, Any]:
    names = {each.machine: each.machine_name for each in seen}
    places = {machine: index for index, machine in enumerate(names)}
    return {
        "title": f"{seen[0].workload} {seen[0].preset}, {seen[0].label}",
        "drawing": bars.sparkline(
            [
                (each.value, (each.low, each.high), places[one.machine] % _NUM_COLORS)
                for one in seen
                for each in (one.throughput,)
            ]
        ),
        "last": _figure(seen[-1].throughput),
        "rows": [
            (
                formats.minute(one.date),
                one.study,
                one.commit or formats.ABSENT,
                _figure(each),
                formats.interval(each.low, each.high, formats.significant),
                f"M{places[one.machine] + 1}",
            )
            for one in seen
            for each in (one.throughput,)
        ],
        "machines": [
            (f"M{places[machine] + 1}", f"{name} ({machine[:8]})")
            for machine, name in names.items()
        ],
    }


def _figure(estimate: Estimate) -> str:
    return f"{formats.significant(estimate.value)} {estimate.unit}"


# A parameter sweep has a study per value, so ratios stand within a study only.


class ValueRow(NamedTuple):
    value: str  # Of the setting.
    study: str  # The folder of its study.
    row: Any  # Of the tidy frame: its case and unit.
    what: str  # Quality metric with its protocol, or the scaling mode.
    median: float  # Of the runs or repetitions.
    low: float | None  # Lower end: the worst run, or of the interval; None without one.
    high: float | None  # Upper end.
    n: int  # Runs, or repetitions.
    spent: str = ""  # What a run had seen at its end, in words; empty for throughput.

    def bar(self, rows: Sequence[ValueRow]) -> Markup:
        """Draws the median and its ends beside those of the same backend and figure."""
        tops = [row.high or row.median for row in rows if row.what == self.what]
        return bars.from_zero(
            max(self.median, 0.0),
            (self.low, self.high),
            top=max([*tops, self.median, 1e-9]),
            series=series_of(self.row.backend),
        )

    @property
    def cells(self) -> tuple[tuple[str, str], ...]:
        return (
            ("", self.row.backend),
            ("n", str(self.row.num_replicas)),
            ("n", formats.whole(self.row.global_batch_size)),
            ("", self.what),
            ("n", formats.quality(self.median, self.row.unit)),
            ("i", formats.interval(self.low, self.high, formats.significant)),
            ("n", str(self.n)),
            *([("", self.spent)] if self.spent else []),
        )


def build_varied(root: pathlib.Path) -> str:
    """Returns the page as HTML; the same records give the same bytes."""
    varied = studies_lib.read(root)
    if varied is None:
        raise errors.ResultsError(f"{str(root)!r} is no parameter sweep")
    facts = []
    links = []
    quality: list[ValueRow] = []
    speed: list[ValueRow] = []
    values = []
    for store in studies_lib.stores(root, varied):
        study, name = load_study(store.public), store.root.name
        if study.problems:
            first = study.problems[0]
            raise errors.ResultsError(
                f"study {name!r} has a damaged record, {str(first.path)!r}:"
                f" {first.reason}; see 'status {store.root}'"
            )
        value = studies_lib.value_of(study.plan, varied.key)
        values.append(value)
        links.append((f"{varied.key} {value}", f"../{name}/report/index.html"))
        frame = frame_lib.points_frame(study)
        quality += _quality(study, frame, value, name)
        speed += _speed(frame, value, name)
        if bad := sum(not entry.is_ok for entry in study.entries):
            facts.append(f"{value}: {formats.count(bad, 'trial')} not ok")
    if missing := len(varied.studies) - len(values):
        facts.insert(0, f"{missing} not begun")
    facts.insert(0, formats.count(len(values), "study", "studies"))
    tables = [
        ("quality", "Quality at the end of training", "worst and best run", quality),
        ("speed", "Throughput", "95 % interval", speed),
    ]
    html = page.render(
        "varied",
        title=f"{root.name}: {varied.key} varied",
        site_style=page.asset("site.css", "site"),
        links=links,
        key=varied.key,
        facts="; ".join(facts),
        tables=tables,
    )
    return f"{html}\n"


def _quality(
    study: Study, frame: pd.DataFrame, value: str, name: str
) -> Iterator[ValueRow]:
    """Yields the last evaluation of the runs of each case, for each metric."""
    learning = frame[frame["figure"] == "learning"]
    keys = ["case", "quantity", "protocol"]
    groups: dict[Any, Any] = dict(iter(learning.groupby(keys, sort=False)))
    for (_, metric, protocol), of_case in groups.items():
        last: list[Any] = [*of_case.groupby("trial_id").tail(1).itertuples()]
        ends = [run.value for run in last]
        spent = int(statistics.median(run.num_examples for run in last))
        what = str(metric) + f" ({protocol})" * bool(protocol)
        low, high = (min(ends), max(ends)) if len(ends) > 1 else (None, None)
        seen = f"{formats.whole(spent)} {study.example_unit}"
        median, n = statistics.median(ends), len(ends)
        yield ValueRow(value, name, last[0], what, median, low, high, n, seen)


def _speed(frame: pd.DataFrame, value: str, name: str) -> Iterator[ValueRow]:
    chosen = frame[
        frame["figure"].eq("scaling")
        & frame["quantity"].eq("throughput")
        & frame["kind"].eq("estimate")
    ]
    row: Any
    for row in chosen.itertuples():
        ends = known(row.low), known(row.high)
        yield ValueRow(value, name, row, row.mode, row.value, *ends, row.n)
