"""Every sentence that a first screen, or a finding, prints says what it is worth.

``tests/statistics/page_claims.py`` has a row for each, which ``make statistics``
simulates and writes into ``docs/archive/claims-of-gates.md``.
"""

import pathlib
import sys

import published_studies
import pytest
from relay_study import ALL, Lost, RelayShape, make_store

from reports.view.view import view_store
from reports.words import brief, formats, verdict
from results.store.study_store import Store

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/statistics"))

import gate_claims  # noqa: E402  # a folder without packages, as its tests are
import number_claims  # noqa: E402
import page_claims  # noqa: E402

DOCUMENT = ROOT / "docs/archive/claims-of-gates.md"


def _sentences(view):
    judged = brief.judge(view)
    yield from (text for text in (judged.scaling, *judged.sentences) if text)
    yield from (finding.sentence for finding in verdict.judge(view).findings)


def _rows(view):
    return {
        page_claims.row_of(
            text.replace(formats.HARD_SPACE, " ").replace(formats.THIN_SPACE, " ")
        )
        for text in _sentences(view)
    }


@pytest.mark.parametrize("name", published_studies.NAMES)
def test_published_studies_say_only_what_has_a_row(name):
    """Figures, causes and comparisons."""
    found = _rows(view_store(Store.open(published_studies.study(name))))

    assert page_claims.INTERVAL in found


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"backends": ("in_graph", "tf_mirrored")},
        {"backends": ("in_graph", "tf_mirrored", "single"), "generations": 5},
        {"lost": {"in_graph": Lost(exposed_communication=0.02)}, "controls": ALL},
        {"lost": {"in_graph": Lost(exposed_communication=0.0, input=0.0)}},
        {"generations": 1},
        {"replicas": (1,), "controls": ()},
    ],
    ids=["default", "two", "three", "cause", "nothing lost", "one", "alone"],
)
def test_made_studies_say_only_what_has_a_row(tmp_path, fields):
    """With and without a cause, a baseline, another backend, an interval."""
    _rows(view_store(make_store(tmp_path, RelayShape(**fields))))


def test_other_studies_say_only_what_has_a_row(tmp_path, synthetic):
    """One repetition, failures, sequences, and nothing at all."""
    shapes = [
        synthetic.Shape(),
        synthetic.Shape(repeats=1),
        synthetic.Shape(repeats=1, num_rounds=8),
        synthetic.Shape(backends=("in_graph",)),
        synthetic.BROKEN,
        synthetic.Shape(noise=0.0),
    ]
    for number, shape in enumerate(shapes):
        store = synthetic.make_store(tmp_path / str(number), shape)
        _rows(view_store(store))


def test_the_document_has_every_row():
    """Of sentences, and of gates on every kind of noise; what is missed is bold."""
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = {row for _, row in page_claims.SENTENCES if row is not None}
    rows |= {*number_claims.ROWS.values()}

    assert all(f"| {row} |" in text for row in rows)
    for claim in gate_claims.CLAIMS:
        assert claim.head in text
        for model in gate_claims.noise_models.MODELS:
            (line,) = [x for x in text.splitlines() if x.startswith(f"| {model} |")]
            column = 2 + gate_claims.CLAIMS.index(claim)
            cell = line.split("|")[column].strip()
            row = gate_claims.Row(
                claim=claim,
                model=model,
                share=float(cell.strip("*")),
                generations=0.0,
                num_gates=1000,
            )
            assert cell.startswith("**") == row.is_missed, (model, claim.head)
            assert not row.is_broken, (model, claim.head)
