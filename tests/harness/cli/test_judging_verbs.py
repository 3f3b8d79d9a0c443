"""The verbs compare, baseline and power, on studies that nobody measured."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli import exit_codes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def make_study(tmp_path: Path, synthetic: Any) -> Any:
    """Returns a function that makes a study of two backends in ``runs``."""

    def make(name: str, **fields: Any) -> Path:
        defaults = {
            "modes": (synthetic.WEAK,),
            "repeats": 4,
            "num_rounds": 10,
            "noise": 0.01,
            "is_evaluated": False,
            "name": name,
        }
        shape = synthetic.Shape(**(defaults | fields))
        root: Path = synthetic.make_store(tmp_path / "runs" / name, shape).root
        return root

    return make


def test_compare_shows_two_backends_of_a_study(harness: Any, make_study: Any) -> None:
    """Exit code 0; what holds within the set is said."""
    make_study("a")
    code, out, _ = harness("compare", "in_graph", "tf_mirrored", "--study=a")

    assert exit_codes.OK == code
    assert re.search(r"replicas 2, mode weak +1\.2\d+ .* differs", out)
    assert "holds for all 2 together (Holm, 5 %)" in out


def test_compare_calls_two_studies_a_weaker_comparison(
    harness: Any, make_study: Any
) -> None:
    """In every format."""
    make_study("a")
    make_study("b", repeats=5)
    for form in ("text", "markdown"):
        code, out, _ = harness("compare", "a", "b", f"--format={form}")
        assert exit_codes.OK == code
        assert (
            "a weaker comparison: the two were not measured in the same rounds" in out
        )
        assert "Advice, no verdict: the effect of the day and of the machine" in out
        assert "differs" not in out
    _, out, _ = harness("compare", "a", "b", "--format=json")
    assert json.loads(out)["is_weaker"]


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_two_studies_never_differ(harness: Any, make_study: Any, factor: float) -> None:
    """Whatever their ratios: the day and the machine's state were not measured."""
    make_study("a")
    root = make_study("b")
    for path in root.glob("trials/*/result.json"):
        record = json.loads(path.read_text())
        for turn in record["turns"]:
            taken = factor * (turn["end_ns"] - turn["start_ns"])
            turn["end_ns"] = turn["start_ns"] + round(taken)
        path.write_text(json.dumps(record))
    _, out, err = harness("compare", "a", "b", "--format=json")
    rows = json.loads(out)["rows"]

    assert rows, err
    assert not any(row["differs"] for row in rows)
    assert "Advice, no verdict" in harness("compare", "a", "b")[1]
    code, out, err = harness("report", "a", "b", "--format=markdown")
    assert exit_codes.OK == code, err
    assert "Advice, no verdict" in out


def test_studies_that_are_not_comparable_are_refused_or_shown(
    harness: Any, make_study: Any
) -> None:
    """Refused with the difference; shown they still do not pass."""
    make_study("a")
    make_study("b", fingerprints=("00" * 10,))
    code, out, err = harness("compare", "a", "b")
    shown = harness("compare", "a", "b", "--allow-different")

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
        (("compare", "a", "nothing"), r"'runs/nothing'|'nothing'"),
        (("compare", "a", "a", "--metric=joy"), r"unknown metric 'joy'; allowed are"),
        (
            ("compare", "a", "a", "--metric=efficiency"),
            r"efficiency of two studies cannot be judged: .* beside a revision of git",
        ),
        (("compare", "x", "in_graph", "--study=a"), r"study 'a' has no backend 'x'"),
        (("baseline", "set"), r"'baseline set' takes a STUDY"),
        (("baseline", "list", "a"), r"'baseline list' takes no STUDY; use --name"),
        (("baseline", "set", "a", "--name=a b"), r"'a b' is no name of a baseline"),
        (("baseline", "set", "nothing"), r"nothing"),
        (
            ("baseline", "show", "--name=x"),
            r"no baseline is named 'x' in .*: none; set",
        ),
        (("power",), r"power needs a spread between generations: name a study"),
        (("power", "--spread=3"), r"--spread: '3' is not a percentage"),
        (("power", "one"), r"study 'one' has 1 generation\(s\) .* a spread needs 2 or"),
        (("power", "alone"), r"study 'alone' has no primary contrast, so it has no sp"),
        (
            ("power", "--spread=3%", "--minutes=3"),
            r"--minutes 3 is time for 1 generation\(s\) of 2.4 min, .* --minutes 5 or",
        ),
        (
            ("power", "--spread=3%", "--target=1%"),
            (
                r"--target 1.00% needs 45 generations, about 108 min at .*, and 28.8"
                r" min are time for 12, which reach 2.1%; use --minutes 108 or"
            ),
        ),
        (
            ("power", "--spread=90%", "--target=1%"),
            r"--target 1.00% needs more than 200 generations at .*; use a wider target",
        ),
    ],
)
def test_what_cannot_be_judged_is_one_line(
    harness: Any, make_study: Any, arguments: tuple[str, ...], message: str
) -> None:
    """Exit code 2, nothing on stdout."""
    studies = {"a": {}, "one": {"repeats": 1}, "alone": {"backends": ("in_graph",)}}
    for name in {argument.rpartition("=")[2] for argument in arguments} & {*studies}:
        make_study(name, **studies[name])
    code, out, err = harness(*arguments)

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.fullmatch(rf"error: .*(?:{message}).*\n", err), err


def test_a_baseline_is_named_listed_and_replaced(
    harness: Any, make_study: Any, tmp_path: Path
) -> None:
    """One file beside the studies, which other verbs leave alone."""
    make_study("a")
    make_study("b")
    assert (exit_codes.OK, "default: a\n", "") == harness("baseline", "set", "a")
    harness("baseline", "set", "a", "--name=release")
    harness("baseline", "set", "b")
    code, out, _ = harness("baseline", "list")
    _, shown, _ = harness("baseline", "show", "--name=release", "--json")

    assert exit_codes.OK == code
    assert re.fullmatch(r"default: b, set at 2.*Z?\nrelease: a, set at 2.*\n", out), out
    assert "a" == json.loads(shown)["study"]
    assert ["baselines.json"] == [
        path.name for path in (tmp_path / "runs").iterdir() if path.is_file()
    ]
    assert exit_codes.OK == harness("status", "a")[0]


def test_days_of_a_baseline_are_other_days(
    harness: Any, make_study: Any, tmp_path: Path
) -> None:
    """Nothing is written where they say nothing about days."""
    for name in ("a", "b", "c"):
        make_study(name)
    code, _, err = harness("baseline", "set", "a", "--days=b,c")
    of_list = harness("baseline", "list", "--days=b")

    assert exit_codes.USAGE == code
    assert re.fullmatch(
        r"error: studies 'a' and 'b' were both measured on .*, which says nothing about"
        r" other days; name studies of different days\n",
        err,
    ), err
    assert (
        exit_codes.USAGE,
        "",
        (
            "error: --days has no effect with 'baseline list'; use it with"
            " 'baseline set STUDY'\n"
        ),
    ) == of_list
    assert not (tmp_path / "runs" / "baselines.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no file of baselines"),
        ("[]", "is no file of baselines"),
        ('{"version": 2, "baselines": {}}', "has version 2, this harness reads 1"),
        ('{"version": 1, "baselines": {"a": {}}}', "is no file of baselines"),
    ],
)
def test_a_damaged_file_of_baselines_is_refused(
    harness: Any, make_study: Any, tmp_path: Path, content: str, message: str
) -> None:
    """It is named, and not overwritten."""
    make_study("a")
    path = tmp_path / "runs" / "baselines.json"
    path.write_text(content)
    for action in (("list",), ("set", "a")):
        code, _, err = harness("baseline", *action)
        assert exit_codes.USAGE == code
        assert message in err
    assert content == path.read_text()


def test_a_study_without_results_is_no_baseline(
    harness: Any, make_study: Any, synthetic: Any
) -> None:
    """Nothing could be judged against it."""
    failed = synthetic.TrialStatus.FAILED
    names = ("in_graph", "tf_mirrored")
    statuses = {
        (name, synthetic.WEAK, size, 0): failed for name in names for size in (1, 2)
    }
    make_study("a", repeats=1, statuses=statuses)
    code, _, err = harness("baseline", "set", "a")

    assert exit_codes.USAGE == code
    assert re.search(
        r"study 'a' has no trial that is ok, so nothing can be judged", err
    )


def test_power_uses_the_spread_of_the_primary_contrast(
    harness: Any, make_study: Any
) -> None:
    """It names the contrast; the table is of the generations that the time allows."""
    make_study("a")
    code, out, _ = harness("power", "a", "--generations=4", "--json")
    table = json.loads(out)

    assert exit_codes.OK == code
    assert 0 < table["spread"] < 0.05
    assert re.match(r"in_graph  / tf_mirrored ; 4 generations of a", table["source"])
    assert 4 == table["num_generations"]
    probabilities = [
        point["passes"] + point["regresses"] + point["inconclusive"]
        for point in table["points"]
    ]
    assert [pytest.approx(1)] * len(probabilities) == probabilities


def test_power_answers_for_the_gate_that_would_be_run(harness: Any) -> None:
    """Its looks, as many as there is time for; a pass needs time for 15 generations."""
    found = []
    for minutes in ("30min", "40min"):
        words = ("power", "--spread=3%", f"--minutes={minutes}", "--json")
        code, out, _ = harness(*words)
        assert exit_codes.OK == code
        found.append(json.loads(out))
    short, whole = found

    assert [4, 5, 6, 8, 10, 12] == short["looks"]
    assert [4, 5, 6, 8, 10, 12, 15, 16] == whole["looks"]
    assert short["points"][0]["passes"] == 0
    assert whole["points"][0]["passes"] > 0.92


def test_power_of_one_look_is_that_of_repeats(harness: Any) -> None:
    """At a spread of 3 % and five generations of one case."""
    code, out, _ = harness("power", "--spread=3%", "--generations=5")

    assert exit_codes.OK == code
    assert "one look after 5 generations" in out
    rows = {
        change: [float(share) for share in shares.split()]
        for change, shares in re.findall(
            r"^ +([+]\d+\.\d%) +(\d\.\d+ +\d\.\d+ +\d\.\d+)", out, re.MULTILINE
        )
    }
    # Five cannot pass, and intervals are wider than Student's.
    assert pytest.approx([0.0, 0.02], abs=0.02) == rows["+0.0%"][:2]
    assert pytest.approx([0.0, 0.80], abs=0.05) == rows["+8.0%"][:2]
