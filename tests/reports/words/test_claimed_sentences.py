"""Every sentence that a first screen prints says what it is worth.

``page_claims`` has a row for each, which ``make statistics`` simulates and writes into
``docs/claims``.
"""

import csv
import pathlib

import gate_claims
import noise_models
import page_claims
import pytest
import study_files
from command_lines import plain
from synthetic import Lost, interleaving_shape

from reports.view import view_store
from reports.words import brief
from results import Store

TABLES = pathlib.Path(__file__).parents[3] / "docs/claims"


def _rows(store):
    view = view_store(store)
    judged = brief.judge(view)
    return {page_claims.row_of(plain(text)) for text in judged.sentences}


@pytest.mark.parametrize("name", study_files.PUBLISHED)
def test_published_studies_say_only_what_has_a_row(name):
    found = _rows(Store.open(study_files.published(name)))

    assert {page_claims.INTERVAL, page_claims.FASTER} & found


def test_made_studies_say_only_what_has_a_row(make, broken):
    two = ("in_graph", "tf_mirrored")
    nothing = {"in_graph": Lost(exposed_communication=0.0, input=0.0)}
    _rows(broken)
    for shape in (
        interleaving_shape(),
        interleaving_shape(backends=two),
        interleaving_shape(backends=(*two, "single"), repeats=5),
        interleaving_shape(lost={"in_graph": Lost(exposed_communication=0.02)}),
        interleaving_shape(lost=nothing),
        interleaving_shape(repeats=1),
        interleaving_shape(replicas=(1,), controls=()),
    ):
        _rows(make(shape))
    for fields in (
        {},
        {"repeats": 1},
        {"repeats": 1, "num_rounds": 8},
        {"backends": two[:1]},
        {"noise": 0.0},
    ):
        _rows(make(**fields))


def _table(name):
    with (TABLES / name).open(encoding="utf-8", newline="") as file:
        heads, *rows = csv.reader(file)
    return heads, rows


def test_the_tables_have_every_row():
    rows = {row for _, row in page_claims.SENTENCES if row is not None}
    rows |= {*page_claims.ROWS.values()}
    heads, gates = _table("gates-by-noise.csv")

    assert set() == rows - {name for name, *_ in _table("pages.csv")[1]}
    assert [*noise_models.MODELS] == [model for model, *_ in gates]
    for column, claim in enumerate(gate_claims.CLAIMS, start=1):
        assert heads[column].startswith(claim.head)
        for cells in gates:
            row = gate_claims.Row(
                claim=claim,
                model=cells[0],
                share=float(cells[column]),
                repetitions=0.0,
                num_gates=1000,
            )
            assert not row.is_broken, (row.model, claim.head)
