"""A gate is written for terminals, pull requests, CI systems and programs."""

import json
import re
from xml.etree import ElementTree as ET

import pytest

from reports.words.judging import judgement
from results.judging import gate, gate_metrics
from results.study.cases import load_study

BASE = "1234567890ab"


@pytest.fixture
def relay(tmp_path, synthetic):
    def make(**fields):
        defaults = {
            "backends": ("in_graph", "tf_mirrored"),
            "modes": (synthetic.WEAK,),
            "repeats": 4,
            "num_rounds": 10,
            "noise": 0.008,
            "twin_factor": 1.0,
            "revisions": {BASE: 1 / 1.1},
            "is_evaluated": False,
        }
        shape = synthetic.Shape(**(defaults | fields))
        return load_study(synthetic.make_store(tmp_path / "s", shape))

    return make


def judged(study):
    rule = gate_metrics.Rule(metric=gate_metrics.THROUGHPUT, delta=0.05, alpha=0.05)
    return gate.of_revisions(study, rule, baseline="main")


def test_the_text_ends_with_the_verdict(relay):
    """A row per case, the twin, the void turns; the rule is in the last line."""
    lines = judgement.gate_text(judged(relay())).splitlines()

    assert re.match(r"case +slower by +interval, at least 90% +n +verdict", lines[0])
    assert re.search(
        r"in_graph x2, weak +\+\d+\.\d % +\[\+\d+.* %\] +4 +regress", lines[3]
    )
    assert lines[-5].startswith("twin (one case measured twice): ")
    assert lines[-4].startswith("4 generations cannot pass, ")
    assert lines[-3].startswith("intervals are ")
    assert "void turns: 0 of 360" == lines[-2]
    assert re.match(
        r"REGRESS: throughput against main: 4 regress \(slower by 5.0% matters",
        lines[-1],
    )


def test_junit_has_a_failure_per_regression(relay):
    suite = ET.fromstring(judgement.gate_junit(judged(relay())))

    assert ("5", "5", "0") == tuple(
        suite.get(name) for name in ("tests", "failures", "errors")
    )
    assert 5 == len(suite.findall("testcase/failure"))
    assert "in_graph x1, weak" == suite.find("testcase").get("name")


def test_junit_of_a_pass_has_no_failure(relay):
    fields = {"backends": ("in_graph",), "repeats": 15}
    found = judged(relay(revisions={BASE: 1.0}, **fields))
    suite = ET.fromstring(judgement.gate_junit(found))

    assert not suite.findall("testcase/*")


def test_junit_of_an_unfit_machine_is_an_error(relay):
    found = judged(relay(revisions={BASE: 1.0}, void_share=0.5))
    suite = ET.fromstring(judgement.gate_junit(found))
    (error,) = suite.findall("testcase[@name='all']/error")

    assert error.get("message").startswith("UNFIT: throughput against main: no verdict")


def test_github_annotates_a_regression_as_an_error(relay):
    """A percent sign is escaped, as workflow commands demand."""
    lines = judgement.gate_github(judged(relay())).splitlines()

    assert 5 == len(lines)
    assert all(
        line.startswith("::error title=performance gate::throughput: ")
        for line in lines[:4]
    )
    assert "%25" in lines[0]
    assert not re.search(r"%(?!25)", lines[0])


def test_markdown_is_a_table_below_the_verdict(relay):
    lines = judgement.gate_markdown(judged(relay())).splitlines()
    table = [line for line in lines if line.startswith("|")]

    assert lines[0].startswith("**REGRESS: throughput against main")
    assert {6} == {line.count("|") for line in table}
    assert 6 == len(table)


def test_json_has_the_figures(relay):
    data = json.loads(judgement.gate_json(judged(relay())))

    assert "regress" == data["verdict"]
    assert pytest.approx(0.9) == data["cases"][0]["slowdown"]["confidence"]
    assert 360 == data["num_turns"]
    assert 4 == data["twin"]["n"]


def test_a_gate_without_any_trial_says_so(relay, synthetic):
    """No verdict can be read from it."""
    timeout = synthetic.TrialStatus.TIMEOUT
    statuses = {
        ("in_graph", synthetic.WEAK, size, index): timeout
        for size in (1, 2)
        for index in range(4)
    }
    found = judged(relay(backends=("in_graph",), statuses=statuses))

    assert "NO VERDICT: throughput against main: nothing was measured" == (
        judgement.headline(found)
    )


def test_small_changes_have_no_sign_of_their_own():
    """Neither -0.0 % nor +0.0 % that differ."""
    assert "+0.0 %" == judgement.change_text(0.99999)
    assert "-5.0 %" == judgement.change_text(0.95)
