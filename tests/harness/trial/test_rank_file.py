"""The file of a rank is read line by line, whatever its process left."""

import pytest

from harness.trial.rank_file import (
    RankFileError,
    one_line,
    rank_path,
    read_rank,
)
from results.records.models import Phase


@pytest.mark.parametrize("line", ["{", '{"kind": "wat"}', '{"kind": "step"}', "[]"])
def test_a_broken_line_is_named(tmp_path, line):
    """A complete line that is malformed is an error, not a gap."""
    rank_path(tmp_path, 0).write_text(f'{{"kind": "done", "ns": 1}}\n{line}\n')
    with pytest.raises(RankFileError, match=r"rank_0.jsonl line 2 is malformed"):
        read_rank(tmp_path, 0)


def test_a_missing_file_is_an_empty_log(tmp_path):
    """The process never got that far."""
    log = read_rank(tmp_path, 0)

    assert (Phase.LAUNCH, []) == (log.phase, log.steps)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\nb", "a"), ("\n  a  \n", "a"), ("", ""), ("x" * 900, "x" * 497 + "...")],
)
def test_reasons_are_one_line(text, expected):
    """The rest is in the traceback."""
    assert expected == one_line(text)
