"""No cell of a CSV file is computed when it is opened."""

import csv
import io

import pandas as pd
import pytest

from reports.words import cells


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1", "\r=1"]
)
def test_a_formula_becomes_text(text):
    """In a name of a study, as a hostile one has it."""
    made = cells.as_csv(pd.DataFrame({"study": [text]}))
    (_, row) = csv.reader(io.StringIO(made, newline=""))

    assert [f"'{text}"] == row


@pytest.mark.parametrize("value", ["in_graph", "-0.5", "+3.2 %", "-1e-05", -0.5, 3, ""])
def test_numbers_and_words_stay(value):
    assert value == cells.inert(value)
