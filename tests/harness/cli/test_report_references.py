"""``report --references`` chooses published figures, or says why it cannot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from harness.cli import exit_codes
from reports.page.sections import scaling

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def _page(folder: Path) -> str:
    return (folder / "runs/s/report/index.html").read_text(encoding="utf-8")


def test_published_figures_are_shown_when_asked(
    harness: Any, finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study on CPUs shows none by itself."""
    # The other sections, which show none, take most of the time.
    monkeypatch.setattr("reports.page.build.SECTIONS", (scaling,))
    assert exit_codes.OK == harness("report", "s")[0]
    assert "DeepLearningExamples" not in _page(tmp_path)
    code, _, err = harness("report", "s", "--references=nvidia", "--references=mlperf")

    assert exit_codes.OK == code, err
    assert "DeepLearningExamples, TensorFlow, ResNet-50 v1.5" in _page(tmp_path)
    assert "MLPerf Training v3.0" in _page(tmp_path)
    assert exit_codes.OK == harness("report", "s", "--references=none")[0]
    assert "DeepLearningExamples" not in _page(tmp_path)


def test_references_that_cannot_be_read_are_one_line(
    harness: Any, finished: Any, written: Any
) -> None:
    """And the report stays as it was."""
    before = written()
    code, out, err = harness("report", "s", "--references=nvidea", "-o", "new.html")

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.fullmatch(
        r"error: --references 'nvidea': No such file or directory; did you mean"
        r" 'nvidia'\? allowed are mlperf, nvidia, none, and YAML files .*\n",
        err,
    )
    assert before == written()
