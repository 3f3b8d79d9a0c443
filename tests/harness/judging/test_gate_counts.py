"""What a step of a workload has is compared exactly, before and beside its time."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from gate_process import GATE

from harness.cli import exit_codes

pytestmark = pytest.mark.processes
AS_LONG_AS_NEEDED = tuple(of for of in GATE if not of.startswith("--repeats"))
OF = ("--repeats=2", "--rounds=1", "--baseline=sent_less")


@pytest.mark.usefixtures("with_pages")
def test_three_percent_more_bytes_are_shown_before_the_first_turn(gate):
    files = ("--write=junit=gate.xml", "--write=json=gate.json")
    code, out, err = gate(*OF, "--study=g", *files)

    assert exit_codes.INCONCLUSIVE == code, err
    line = "counted in a step: in_graph x1: collective bytes +3.0 % (exact: 1000 to"
    assert err.index(line) < err.index("checking and recording")
    assert 1 == err.count("counted in a step")
    assert re.search(
        r"x1, weak: collective bytes +\+3.0 % +exact: 1000 to 1030 +2 +rose", out
    )
    assert "equal on both sides in each case: graph nodes" not in out
    assert "and equal on both sides: graph nodes (n = 2 runs of a side or more)" in out
    assert "not judged; --count collective_bytes: a rise is a regression" in out
    assert "1 rose (slower by 5.0% matters" in out
    suite = ET.parse("gate.xml").getroot()
    (case,) = suite.findall("testcase[system-out]")
    assert "0" == suite.get("failures")
    assert "in_graph x1, weak: collective bytes" == case.get("name")
    assert "rose: exact: 1000 to 1030 (+3.0 %), n 2" in case.findtext("system-out", "")
    counted = json.loads(Path("gate.json").read_text())["cases"][-1]["count"]
    assert (1000, 1030, False) == (
        counted["before"],
        counted["after"],
        counted["is_judged"],
    )
    kept = json.loads(Path("runs/g/gate.json").read_text())["cases"][-1]
    assert ("rose", 1000, 1030) == (kept["verdict"], kept["before"], kept["after"])
    page = Path("runs/g/report/index.html").read_text()
    assert "collective bytes rose from 1000 to 1030, exactly (not judged)." in page
    assert "+3.0 %, exact: 1000 to 1030" in page
    assert "Graph nodes" in page
    assert '<td class="n">1\N{NARROW NO-BREAK SPACE}030</td>' in page  # every digit

    # It was measured, and is only judged again: by itself, since no step takes longer.
    names = ("--count=collective_bytes", "--count=graph_nodes")
    code, out, err = gate(*OF, "--study=g", *names)
    assert exit_codes.REGRESSION == code, err
    assert "REGRESS: throughput, graph nodes, collective bytes against revision" in out
    assert re.search(r"collective bytes +\+3.0 % +exact: 1000 to 1030 +2 +regress", out)
    assert re.search(r"graph nodes +\+0.0 % +exact: 100 +2 +pass", out)
    assert "1 regress" in out
    assert "counted in a step" not in err


def test_what_was_named_fails_on_a_busy_machine_too(gate):
    """All turns are void, and one generation is enough: the code has the count."""
    code, out, err = gate(
        *OF,
        "--count=collective_bytes",
        "--write=junit=gate.xml",
        "--format=github",
        void_reason=lambda _load, _retraces: "noise",
    )

    assert exit_codes.REGRESSION == code, err
    assert "counted in a step: in_graph x1: collective bytes +3.0 %" in err
    assert "collective bytes: regress: exact: 1000 to 1030 (+3.0 %25), n 1" in out
    last = out.splitlines()[-1]
    assert last.startswith("::error ")
    assert "REGRESS: throughput, collective bytes against revision" in last
    assert "1 no verdict, 1 regress" in last
    assert re.search(
        r"; the machine gave no verdict: (\d+) of \1 blocks are discarded", last
    )
    suite = ET.parse("gate.xml").getroot()
    assert ("2", "0", "1") == tuple(
        suite.get(name) for name in ("failures", "errors", "skipped")
    )


def test_a_gate_ends_with_the_generation_in_which_a_count_rose(gate):
    """Others could not change the verdict; the same command shows it again."""
    arguments = ("--baseline=sent_less", "--rounds=1", "--count=collective_bytes")
    for is_first in (True, False):
        code, out, err = gate(*arguments, "--study=g", of=AS_LONG_AS_NEEDED)

        assert exit_codes.REGRESSION == code, err
        assert "stopped: a count rose, which makes it a regression" in err
        assert is_first == ("counted in a step" in err)
        assert re.search(r"collective bytes +\+3.0 % +exact: 1000 to 1030 +1 +reg", out)
    assert {0} == {
        json.loads(path.read_text())["repetition_index"]
        for path in Path("runs/g/trials").glob("*/spec.json")
    }


def test_an_unchanged_tree_reports_nothing(gate, stored):
    code, out, err = gate("--baseline=same", f"--study={stored}")

    assert exit_codes.OK == code, err
    assert "exact: " not in out
    assert "and equal on both sides: graph nodes, collective bytes (n = 5 runs" in out
    assert "counted in a step:" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--count=nodes",), "--count 'nodes' is not counted in a step; use one of gr"),
        (
            ("--count=retraces=([0-9]+)",),
            "has a pattern, and a workload prints nothing that is read",
        ),
        (("--count=retraces",) * 2, "--count 'retraces' is given twice; give it once"),
        (
            ("--count=collectives", "--backends=in_graph,tf_mirrored"),
            "of backend 'tf_mirrored'; use one of graph_nodes, dispatches, retraces\n",
        ),
        (
            ("--count=graph_nodes", "--backends=in_graph,jax"),
            "--count 'graph_nodes' is not known of backend 'jax'; use other backends",
        ),
        (
            ("--count=graph_nodes", "--backends=async"),
            "is not known of backend 'async'; use one of retraces\n",
        ),
        (
            ("--count=retraces", "--steps=1+"),
            "--steps 1+: the first step traces, so another one is counted",
        ),
    ],
)
def test_a_count_that_cannot_be_judged_is_refused(gate, arguments, message):
    code, out, err = gate("--baseline=same", *arguments)

    assert (exit_codes.USAGE, "") == (code, out)
    assert message in err
    assert not Path("runs").exists()
