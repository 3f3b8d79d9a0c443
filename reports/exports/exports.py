"""A study in other formats: a terminal, Markdown, JSON, CSV, its records as a zip.

The zip holds the facts that ``results.store.public`` lists; ``verify`` accepts it.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any, Final

import rich.box
import rich.console
import rich.table
import rich.text

from reports import output_file
from reports.view import view_store
from reports.words import brief, caveats, formats
from results.errors import ResultsError
from results.figures import frame
from results.judging.gate import GATE_NAME
from results.store import manifest, public, untrusted
from results.store.study_store import EQUIVALENCE_NAME, PLAN_NAME, TRIALS_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from reports.view import View
    from reports.words.brief import Row
    from results.judging.gate_metrics import Metric
    from results.store.study_store import Store

MOST_LINES: Final = 40
"""Of the Markdown: what a reviewer sees without scrolling past it."""
_MOST_ROWS: Final = 18
_MOST_LIMITS: Final = 8


def as_json(store: Store) -> str:
    view = view_store(store)
    verdict = {"verdict": verdict_data(view)}
    return json.dumps(verdict | frame.summarize(view.study, view.frame), indent=2)


def verdict_data(view: View) -> dict[str, Any]:
    shown = brief.judge(view)
    return {
        "headline": shown.text,
        "level": shown.level.value,
        "next_step": shown.next_step,
        "caveats": [
            caveat._asdict() | {"level": caveat.level.value}
            for caveat in caveats.collect(view)
        ],
        "limits": list(caveats.limits(view)),
    }


def csv_of_studies(stores: Sequence[Store], _metric: Metric | None = None) -> str:
    """Returns the tidy frame of some studies; the first column has their names."""
    import pandas as pd

    parts = []
    for store in stores:
        part = frame.points_frame(store)
        part.insert(0, "study", store.read_plan().study)
        parts.append(part)
    return output_file.as_csv(pd.concat(parts, ignore_index=True)).rstrip("\n")


def as_markdown(store: Store) -> str:
    view = view_store(store)
    judged = brief.judge(view)
    lines = [
        f"### {formats.escaped(view.study.plan.study)}",
        "",
        f"**{formats.escaped(judged.text)}**",
        "",
    ]
    if all_rows := brief.table(view, view.points):
        rows = _most_useful(all_rows)
        cells_of = [row.cells for row in rows]
        lines += formats.markdown_table(brief.columns(view), cells_of)
        num_more = len(all_rows) - len(rows)
        if num_more:
            lines.append("")
            more = formats.count(num_more, "more case")
            lines.append(f"{more}: `{brief.export(view.study.plan, 'csv')}`.")
        lines += ["", formats.escaped(judged.note), ""]
    limits = [
        f"- {formats.escaped(text)}"
        for text in (*_caveats(view), *caveats.limits(view))
    ]
    lines += limits[:_MOST_LIMITS]
    if len(limits) > _MOST_LIMITS:
        lines.append(
            f"- {formats.count(len(limits) - _MOST_LIMITS, 'more limit')} in the report"
        )
    assert len(lines) <= MOST_LINES
    return "\n".join(lines).rstrip()


def _caveats(view: View) -> list[str]:
    """Returns the grade of the evidence, and the caveats that limit trust."""
    return [
        f"{caveat.name}, {caveat.level.value}: {caveat.reason}"
        for caveat in caveats.collect(view)
        if caveat.level is not caveats.Level.OK or caveat.name == "Evidence"
    ]


def _most_useful(rows: Sequence[Row]) -> list[Row]:
    by_size = sorted(rows, key=lambda row: -row.point.num_replicas)
    kept = {id(row) for row in by_size[:_MOST_ROWS]}
    return [row for row in rows if id(row) in kept]


DROPPED_FIRST: Final = (5, 3)
"""Columns that a narrow terminal lacks: the ratio, then the rate; no number is cut."""
_RATE: Final = 3
_WIDEST: Final = 10_000


def _terminal_table(
    view: View, rows: Sequence[brief.Row], numbers: Sequence[int]
) -> rich.table.Table:
    # The narrowest style with rules between the modes.
    table = rich.table.Table(box=rich.box.HORIZONTALS, padding=(0, 1, 0, 0))
    names = brief.columns(view)
    for number in numbers:
        table.add_column(
            names[number],
            justify="right" if number == _RATE else "left",
            # Only a name may be wrapped, and only where nothing else helps.
            no_wrap=number != 0,
            overflow="fold" if number == 0 else "ellipsis",
        )
    previous = None
    for row in rows:
        if previous not in (None, row.point.mode):
            table.add_section()
        # On two lines, so that the table fits 80 columns. Text, not str: a name in
        # brackets must not be parsed as markup.
        cells = [cell.replace(" [", "\n[").replace(", ", "\n") for cell in row.cells]
        table.add_row(*(rich.text.Text(cells[number]) for number in numbers))
        previous = row.point.mode
    return table


def _columns_that_fit(
    view: View, rows: Sequence[brief.Row], console: rich.console.Console
) -> list[int]:
    fitting = [number for number, name in enumerate(brief.columns(view)) if name]
    options = console.options.update(max_width=_WIDEST)
    for number in DROPPED_FIRST:
        wide = console.measure(_terminal_table(view, rows, fitting), options=options)
        if wide.maximum <= console.width:
            break
        if number in fitting:
            fitting.remove(number)
    return fitting


def print_summary(store: Store, console: rich.console.Console) -> None:
    view = view_store(store)
    judged = brief.judge(view)

    def show(text: str, style: str = "") -> None:
        if text:
            console.print(rich.text.Text(text, style=style))

    console.print()
    verdict = f"{judged.verdict}: " * bool(judged.verdict)
    show(f"{verdict}{judged.sentences[0]}", "bold")
    if judged.rows:
        numbers = _columns_that_fit(view, judged.rows, console)
        console.print(_terminal_table(view, judged.rows, numbers))
        names = brief.columns(view)
        dropped = [names[at] for at in DROPPED_FIRST if names[at] and at not in numbers]
        if dropped:
            listed = ", ".join(dropped)
            show(f"{console.width} columns have no room for: {listed}", "dim")
        show(judged.note, "dim")
    for sentence in judged.sentences[1:]:
        show(sentence)
    show(f"{judged.trust}." if judged.trust else "")
    for text in _caveats(view):
        show(text)
    show(f"Next: {judged.next_step}." if judged.following else "")


MOST_BYTES: Final = 2 * 2**20
_MEGABYTE: Final = 1_000_000
_SOME_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the first that the format knows


def records_of_studies(
    stores: Iterable[Store], data_url: str
) -> tuple[dict[Path, bytes | str], list[str]]:
    """Returns the records that pages link, and why studies have none, a line each."""
    records: dict[Path, bytes | str] = {}
    missing = []
    for store in stores:
        name = store.root.name
        if data_url:
            records[store.root] = data_url.replace("{study}", name)
            continue
        try:
            content = records_of(store)
        except ResultsError as error:
            missing.append(str(error))
            continue
        if len(content) <= MOST_BYTES:
            records[store.root] = content
            continue
        missing.append(
            f"the records of {name!r} are {len(content) / _MEGABYTE:.1f} MB as a zip,"
            f" at most {MOST_BYTES / _MEGABYTE:.0f} MB go beside a page; put them"
            " elsewhere, and give their address as --data-url"
        )
    return records, missing


def export_records(stores: Sequence[Store], _metric: object = None) -> bytes:
    return records_of(stores[0])


def records_of(store: Store) -> bytes:
    """Returns the public records of a study as a zip file; raises ResultsError."""
    files = {}
    for name in _names(store):
        try:
            stored = untrusted.read_bytes(store.root / name) or b""
            content = public.content(name, stored)
        except untrusted.DamagedFileError as error:
            raise ResultsError(
                f"no records of {store.root.name!r} are exported: {name} is damaged"
                f" ({error}); restore it from a copy, or remove its trial and measure"
                " it again"
            ) from error
        if content is not None:
            files[name] = content
    # Of an earlier version, without a manifest, it would promise too much.
    if manifest.MANIFEST_NAME in untrusted.names_in(store.root):
        sums = {name: manifest.digest(content) for name, content in files.items()}
        lines = (f"{one}  {name}\n" for name, one in sorted(sums.items()))
        files[manifest.MANIFEST_NAME] = "".join(lines).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{store.root.name}/{name}", _SOME_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, content)
    return stream.getvalue()


def _names(store: Store) -> Iterator[str]:
    """Yields the path of each file of records in the study."""
    top = untrusted.names_in(store.root)
    yield from (name for name in (PLAN_NAME, GATE_NAME) if name in top)
    for part in (store, store.equivalence):
        below = TRIALS_NAME if part is store else f"{EQUIVALENCE_NAME}/{TRIALS_NAME}"
        for trial_id in part.trial_ids():
            for name in sorted(untrusted.names_in(part.trial_dir(trial_id))):
                if manifest.EVIDENCE.fullmatch(name):
                    yield f"{below}/{trial_id}/{name}"
