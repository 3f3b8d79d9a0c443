"""Input-bound: in the headline, the section, the terminal and the JSON."""

import io
import json
import re

import pytest
import rich.console
from relay_study import ALL, Lost, RelayShape, make_store

from reports.exports import text
from reports.page.sections import lost_time
from reports.view.view import view_store
from reports.words import verdict
from results.figures import summary
from results.records.models import Control

NUMBER = r"\d+\s% \[\d+,\s\d+\]"


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    def make_one(pipelines, **changes):
        shape = RelayShape(
            backends=("in_graph",),
            lost={"in_graph": Lost(input=0.008, pipelines=pipelines)},
            controls=(*ALL, Control.INPUT_ONLY),
            **changes,
        )
        return make_store(tmp_path_factory.mktemp("relay"), shape)

    return make_one


@pytest.fixture(scope="module")
def bound(make):
    return make(0.063)


@pytest.fixture(scope="module")
def not_bound(make):
    return make(0.010)


def test_the_headline_says_that_the_loss_is_that_of_the_input(bound):
    """Beside the speedup, which would be called poor scaling otherwise."""
    judged = verdict.judge(view_store(bound))

    assert re.search(
        rf"It is input-bound with 2 replicas: its input pipelines alone take {NUMBER} "
        r"of a step, longer than the step of one replica, so the loss is that of the "
        r"input\.$",
        judged.headline,
    )
    assert any("input-bound" in finding.sentence for finding in judged.findings)


def test_the_section_and_the_terminal_say_what_the_pipelines_take(bound):
    """With the interval, in the unit of the parts."""
    section = lost_time.render(view_store(bound))
    stream = io.StringIO()
    text.print_summary(bound, rich.console.Console(file=stream, width=300))
    line = lost_time.lines(view_store(bound))[-1]

    assert re.search(
        rf"input-bound: the input pipelines alone take \d\d\.\d \[.*\] ms, {NUMBER} of"
        r" the step; faster replicas would wait for their batches$",
        line,
    )
    assert line in stream.getvalue()
    assert "Input-bound: the input pipelines alone take" in section


def test_a_case_that_is_not_input_bound_is_not_called_so(not_bound):
    """The section says it; the verdict has nothing to say."""
    judged = verdict.judge(view_store(not_bound))
    line = lost_time.lines(view_store(not_bound))[-1]

    assert "input-bound" not in " ".join(f.sentence for f in judged.findings)
    assert "input-bound" not in judged.headline
    assert line.lstrip().startswith("not input-bound: the input pipelines alone take")
    assert line.endswith("its batches arrive before they are needed")


def test_one_generation_is_inconclusive(make):
    """Its value is shown without an interval."""
    store = make(0.063, generations=1)
    line = lost_time.lines(view_store(store))[-1]

    assert "inconclusive: the input pipelines alone take" in line
    assert line.endswith("whether it is input-bound is inconclusive")
    assert "input-bound" not in verdict.judge(view_store(store)).headline


def test_the_json_has_the_verdict_and_its_interval(bound):
    """With the trials of the control."""
    found = json.loads(json.dumps(summary.summary(bound), allow_nan=False))
    (item,) = found["lost_time"]
    judged = item["lost_time"]["input_bound"]

    assert ["input-bound", True] == [judged["verdict"], judged["explains_loss"]]
    assert judged["fraction"]["low"] < judged["fraction"]["value"]
    # The case, one replica, nosync, solo, synthetic twice, and the pipelines alone.
    assert 7 * 4 == len(item["trial_ids"])
