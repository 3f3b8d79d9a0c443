"""A step that was recorded after a study, drawn by device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from reports.page.sections import timelines
from reports.view.view import view_store
from results.records.timeline_record import Span, Timeline

if TYPE_CHECKING:
    from pathlib import Path

    from results.store.study_store import Store

# Of 10 ms between the first and the last one, devices work 4 and 6.
TASKS = (
    ("stage_0_F0", 0, 1, 3),
    ("stage_1_F0", 1, 3, 5),
    ("stage_1_B0", 1, 5, 9),
    ("stage_0_B0", 0, 9, 11),
)
LAYERS = (("model/<b>", 0, 1, 3), ("model/<b> backward", 0, 3, 5))


@pytest.fixture
def store(tmp_path: Path, synthetic: Any) -> Store:
    """A study of one backend."""
    shape = synthetic.Shape(backends=("in_graph",), modes=(synthetic.WEAK,), repeats=1)
    made: Store = synthetic.make_store(tmp_path / "s", shape)
    return made


def keep(store: Store, spans: Any, case_id: str = "") -> str:
    """Records a step of the last case; returns its section as text."""
    store.write_timeline(
        Timeline(
            case_id=case_id or store.read_plan().trials[-1].case_id,
            recorded_at="2026-01-01T00:00:00Z",
            step_sec=0.020,
            cost=1.02,
            clock_bound_sec=0.0,
            communication_share=0.1,
            rows=("replica 0 on CPU:0", "replica 0 on CPU:1"),
            spans=tuple(
                Span(
                    row=row,
                    name=name,
                    kind="compute",
                    begin_sec=begin / 1e3,
                    end_sec=end / 1e3,
                )
                for name, row, begin, end in spans
            ),
        )
    )
    return str(timelines.render(view_store(store)))


def test_a_study_without_timelines_has_no_section(store: Store) -> None:
    """As all studies before, and those that nobody recorded."""
    assert "" == timelines.render(view_store(store))


def test_a_pipeline_is_drawn_under_its_schedule(store: Store) -> None:
    """Two stages, one micro-batch: half of the time is a bubble, as it must be."""
    page = keep(store, TASKS)

    assert (
        "Replica 0: 2 stages, 1 micro-batch; devices have no task for 50.0 % of the"
        " time between the first and the last task, with tasks of one length 50.0 %."
    ) in page
    titles = re.findall(r"<title[^>]*>([^<]*)</title>", page)
    assert {f"stage {k}, {task}" for k in (0, 1) for task in ("F0", "B0")} <= set(
        titles
    )
    assert "stage 1, B0: 5.00 to 9.00 ms" in titles
    assert "schedule, tasks of one length" in page
    assert "stage 0: 50\N{NARROW NO-BREAK SPACE}% busy" in page
    assert "replica 0 on CPU:1: 30\N{NARROW NO-BREAK SPACE}% busy" in page


def test_layers_are_drawn_without_a_schedule(store: Store) -> None:
    """Their names are somebody's, and no markup."""
    page = keep(store, LAYERS)

    assert "tasks of one length" not in page
    assert "model/&lt;b&gt; backward: 3.00 to 5.00 ms" in page
    assert "<b>" not in page


def test_a_timeline_of_a_case_that_is_not_planned_is_left_out(store: Store) -> None:
    """Such as one of a study that was merged."""
    assert "" == keep(store, LAYERS, case_id="0" * 20)


def test_a_damaged_timeline_is_reported(store: Store) -> None:
    """With its file, as other records; the rest of the page stays."""
    keep(store, LAYERS)
    (path,) = (store.root / "timelines").rglob("*.json")
    path.write_text(path.read_text().replace('"row": 0', '"row": 7'))
    view = view_store(store)
    (problem,) = view.study.problems

    assert "" == timelines.render(view)
    assert f"{path.parent.name}/timeline.json" == problem.label
    assert "a span is in a row that is not one of 2" in problem.reason
