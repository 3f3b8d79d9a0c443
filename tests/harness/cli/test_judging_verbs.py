"""``report A B`` and ``gate --dry-run``, on studies that nobody measured."""

import json
import re

import pytest

from harness.cli import exit_codes

GATE = ("gate", "--dry-run", "--workload=resnet50", "--preset=smoke", "--replicas=1")


@pytest.fixture
def make_study(tmp_path, synthetic):
    def make(name, **fields):
        defaults = {
            "modes": (synthetic.WEAK,),
            "repeats": 4,
            "num_rounds": 10,
            "noise": 0.01,
            "is_evaluated": False,
            "name": name,
        }
        shape = synthetic.Shape(**(defaults | fields))
        return synthetic.make_store(tmp_path / "runs" / name, shape).root

    return make


def test_two_studies_are_called_a_weaker_comparison(harness, make_study):
    make_study("a")
    make_study("b", repeats=5)
    for form in ("text", "markdown"):
        code, out, _ = harness("report", "a", "b", f"--format={form}")
        assert exit_codes.OK == code
        assert (
            "a weaker comparison: the two were not measured in the same rounds" in out
        )
        assert "Advice, no verdict: the effect of the day and of the machine" in out
        assert not re.search(r"\d.* differs", out)
    _, out, _ = harness("report", "a", "b", "--format=json")
    assert json.loads(out)["comparison"]["is_weaker"]


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_two_studies_never_differ(harness, make_study, factor):
    """Whatever their ratios: the day and the machine's state were not measured."""
    make_study("a")
    root = make_study("b")
    for path in root.glob("trials/*/result.json"):
        record = json.loads(path.read_text())
        for turn in record["turns"]:
            taken = factor * (turn["end_ns"] - turn["start_ns"])
            turn["end_ns"] = turn["start_ns"] + round(taken)
        path.write_text(json.dumps(record))
    _, out, err = harness("report", "a", "b", "--format=json")
    rows = json.loads(out)["comparison"]["rows"]

    assert rows, err
    assert not any(row["differs"] for row in rows)
    assert "Advice, no verdict" in harness("report", "a", "b", "--format=text")[1]
    code, out, err = harness("report", "a", "b", "--format=markdown")
    assert exit_codes.OK == code, err
    assert "Advice, no verdict" in out


def test_studies_that_are_not_comparable_are_refused_or_shown(harness, make_study):
    """Refused with the difference; shown they still do not pass."""
    make_study("a")
    make_study("b", fingerprints=("00" * 10,))
    code, out, err = harness("report", "a", "b", "--format=text")
    shown = harness("report", "a", "b", "--format=text", "--allow-different")

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.search(
        r"'a' and 'b' are not comparable: machine fingerprint: 5f0c.* / 0000.*;"
        r" measure both on one machine .* or use --allow-different",
        err,
    )
    assert exit_codes.INCONCLUSIVE == shown[0]
    assert "not comparable, shown only: machine fingerprint" in shown[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "a", "nothing", "--format=text"), r"'runs/nothing'|'nothing'"),
        (("report", "a", "b", "--metric=joy"), r"unknown metric 'joy'; allowed are"),
        (GATE, r"a gate needs a baseline: give --baseline with a git revision or a st"),
        (
            (*GATE, "--baseline=one"),
            r"study 'one' has 1 generation\(s\) .* a spread",
        ),
        ((*GATE, "--baseline=alone"), r"study 'alone' has no primary contrast, so it"),
        (
            (*GATE, "--baseline=HEAD", "--minutes=3"),
            r"--minutes 3 is time for 1 generation\(s\) of 2.4 min, .* --minutes 5 or",
        ),
        (
            (*GATE, "--baseline=HEAD", "--metric=peak_memory"),
            r"--dry-run with --metric peak_memory: only gates on throughput are simula",
        ),
    ],
)
def test_what_cannot_be_judged_is_one_line(harness, make_study, arguments, message):
    studies = {
        "a": {},
        "b": {},
        "one": {"repeats": 1},
        "alone": {"backends": ("in_graph",)},
    }
    for name in {argument.rpartition("=")[2] for argument in arguments} & {*studies}:
        make_study(name, **studies[name])
    code, _, err = harness(*arguments)

    assert exit_codes.USAGE == code
    assert re.search(rf"^error: .*(?:{message}).*$", err, re.MULTILINE), err


def test_the_outlook_of_a_gate_is_that_of_its_baseline(harness, make_study, tmp_path):
    """Spread and time of the study; nothing is measured."""
    make_study("a")
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = harness(*GATE, "--baseline=a", "--repeats=4")

    assert exit_codes.OK == code
    assert re.search(r"spread between generations: [0-4]\.\d+% \(in_graph", out)
    assert "one look after 4 generations" in out
    assert before == sorted(tmp_path.rglob("*"))


def test_the_outlook_says_that_a_pass_needs_time_for_15_generations(harness):
    """Beside a revision, at the usual spread."""
    found = {}
    for minutes in ("30min", "40min"):
        code, out, err = harness(*GATE, "--baseline=HEAD", f"--minutes={minutes}")
        assert exit_codes.OK == code, err
        (row,) = re.findall(r"^ +\+0\.0% +(\d\.\d+)", out, re.MULTILINE)
        found[minutes] = float(row)

    assert 0 == found["30min"]
    assert found["40min"] > 0.9
