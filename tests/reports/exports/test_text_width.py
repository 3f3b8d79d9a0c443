"""The table of the terminal drops columns where it is narrow, and cuts no number."""

import io
import re

import pytest
import rich.console

from reports.exports import text
from reports.view.view import view_store

CUT = "\N{HORIZONTAL ELLIPSIS}"


@pytest.fixture(scope="module")
def store(tmp_path_factory, synthetic):
    shape = synthetic.Shape(
        backends=("in_graph", "tf_mirrored", "multi_worker_in_graph"),
        repeats=3,
        num_measured_steps=3,
    )
    return synthetic.make_store(tmp_path_factory.mktemp("study"), shape)


def shown(store, width):
    stream = io.StringIO()
    text.print_summary(store, rich.console.Console(file=stream, width=width))
    printed = stream.getvalue()
    table = printed.partition("resnet50-laptop-synthetic")[2].partition("N: repl")[0]
    return printed, table.splitlines()


def numbers(lines):
    return set(re.findall(r"\d+\.?\d*", " ".join(lines)))


@pytest.mark.parametrize("width", [140, 100, 80, 60, 50])
def test_every_row_fits_and_no_number_is_cut(store, width):
    """What is shown in a narrow table is what the wide one has."""
    _, wide = shown(store, 200)
    printed, rows = shown(store, width)

    assert all(len(line) <= width for line in rows)
    assert CUT not in printed
    assert numbers(rows) <= numbers(wide)
    assert any("efficiency" in line for line in rows)


def test_sixty_columns_keep_the_efficiency_and_say_what_is_missing(store):
    """The columns that matter most are the last to go."""
    printed, rows = shown(store, 60)

    assert "60 columns have no room for: images/s, " in " ".join(printed.split())
    assert sum("multi_worker_in_graph" in line for line in rows) >= 4
    assert {"weak", "strong"} <= set(" ".join(rows).split())


def test_a_wide_terminal_has_every_column(store):
    printed, rows = shown(store, 140)
    console = rich.console.Console(file=io.StringIO(), width=140)

    assert text.COLUMNS == text.columns_that_fit(view_store(store), console)
    assert "have no room" not in printed
    assert any("of best" in line for line in rows)
