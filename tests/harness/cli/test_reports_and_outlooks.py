"""``report`` of one, two and more studies, and the outlook of ``gate --dry-run``."""

import json
import re

import pytest

from harness.cli import exit_codes


@pytest.fixture
def make_study(tmp_path, synthetic):
    def make(name, **fields):
        defaults = {
            "modes": (synthetic.WEAK,),
            "repeats": 3,
            "num_measured_steps": 3,
            "is_evaluated": False,
            "name": name,
        }
        shape = synthetic.Shape(**(defaults | fields))
        root = synthetic.make_store(tmp_path / "runs" / name, shape).root
        # Another study has other trials; here they differ by when they started.
        for path in root.glob("trials/*/status.json"):
            status = json.loads(path.read_text())
            path.write_text(json.dumps(status | {"started_at": f"{name} o'clock"}))
        return root

    return make


@pytest.fixture
def quick_page(monkeypatch):
    """Pages of single studies have tests of their own; here they cost no time."""
    page = "<html>\n<body>\n<p>a page</p>\n</body>\n</html>\n"
    monkeypatch.setattr("reports.page.build.build_report", lambda *_: page)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            "text",
            r"\A[\w ]+(\([\w ,]+\))?: in_graph keeps .* reaches 1.*N: rep.*; \[value",
        ),
        (
            "markdown",
            r"\A### a\n\n`weak scaling efficiency: \d+ % \[\d+, \d+\] at 2 replicas",
        ),
        ("json", r'\A\{\n  "report_version": 1,\n  "verdict": \{\n    "headline"'),
        ("csv", r"\Astudy,figure,quantity,kind,"),
    ],
)
def test_a_study_is_written_in_every_format(
    harness, make_study, tmp_path, form, expected
):
    make_study("a")
    code, out, err = harness("report", "a", "--format", form)
    again = harness("report", "a", "--format", form, "-o", "folder/out")

    assert (exit_codes.OK, "") == (code, err)
    assert re.search(expected, out, re.DOTALL)
    assert (exit_codes.OK, "folder/out\n", "") == again
    assert out == (tmp_path / "folder" / "out").read_text()


def test_two_studies_are_compared_in_a_page(harness, make_study, tmp_path):
    make_study("a")
    make_study("b")
    code, out, err = harness("report", "a", "b")
    again = harness("report", "a", "b", "-o", "page.html")
    page = tmp_path / "runs/a/report/compared-with-b.html"

    assert (exit_codes.OK, "runs/a/report/compared-with-b.html\n", "") == (
        code,
        out,
        err,
    )
    assert (exit_codes.OK, "page.html\n", "") == again
    assert page.read_bytes() == (tmp_path / "page.html").read_bytes()
    assert "on shared axes</h2>" in page.read_text()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", r"what differs \(A / B\)\n  nothing that is recorded\n"),
        (
            "markdown",
            r"\A### A a, B b\n\n\*\*No interval of 4 shared cases excludes equal",
        ),
        ("json", r'"is_comparable": true'),
        ("csv", r"\nb,scaling,throughput"),
    ],
)
def test_a_comparison_is_printed_in_other_formats(harness, make_study, form, expected):
    """For a terminal, a pull request, and programs."""
    make_study("a")
    make_study("b")
    code, out, _ = harness("report", "a", "b", "--format", form)

    assert exit_codes.OK == code
    assert re.search(expected, out, re.IGNORECASE), out


def test_what_is_not_comparable_is_refused_with_the_fact(harness, make_study, written):
    make_study("a")
    make_study("b", workload_version="2")
    before = written()
    code, out, err = harness("report", "a", "b")

    assert (exit_codes.USAGE, "") == (code, out)
    assert 1 == err.count("\n")
    assert re.match(
        r"error: 'a' and 'b' are not comparable: workload version: '1' / '2'; measure"
        r" both on one machine .* or use --allow-different",
        err,
    )
    assert before == written()
    for options in ((), ("--format=text",)):
        code, out, _ = harness("report", "a", "b", "--allow-different", *options)
        assert exit_codes.INCONCLUSIVE == code
    assert "These two studies are not comparable" in out
    assert "not comparable, shown only: workload version" in out
    assert "code: workload version 1 / 2" in out


def test_nothing_in_common_is_refused(refuse, make_study):
    """Also with --allow-different: there is no ratio to show."""
    make_study("a", backends=("in_graph",))
    make_study("b", backends=("tf_mirrored",))
    err = refuse("report", "a", "b", "--allow-different")

    assert re.match(r"error: no case is in both 'a' .* and 'b' .*; compare", err)


@pytest.mark.usefixtures("quick_page")
def test_a_directory_makes_a_site(harness, make_study, tmp_path):
    for name in "abc":
        make_study(name)
    code, out, err = harness("report", "a", "b", "c", "-o", "site")
    first = {p: p.read_bytes() for p in tmp_path.glob("site/**/*") if p.is_file()}
    harness("report", "c", "b", "a", "-o", "site")
    second = {p: p.read_bytes() for p in tmp_path.glob("site/**/*") if p.is_file()}

    assert (exit_codes.OK, "site/index.html\n", "") == (code, out, err)
    assert 9 == len(first)  # an index, pages of studies and pairs, and records
    assert first == second


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_three_studies_are_listed_in_other_formats(harness, make_study, form):
    for name in "abc":
        make_study(name)
    code, out, _ = harness("report", "a", "b", "c", "--format", form)

    assert exit_codes.OK == code
    assert 3 == out.count("in_graph keeps " if form != "markdown" else "] (weak, 2")
    if form == "json":
        assert ["a", "b", "c"] == [row["study"] for row in json.loads(out)]


BAD = [
    (("a", "b", "c"), r"3 studies need a site; name its directory with -o, such as"),
    (("a", "b", "c", "-o", "x.html"), r"3 studies need a site; name its directory"),
    (("a", "--format=mlperf"), r"--format mlperf writes several files; name"),
    (("a", "b", "--format=pytest-benchmark"), r"--format pytest-benchmark is for one"),
    (("a", "--json", "--format=csv"), r"--json is for the report of one study and ex"),
    (("a", "b", "--json"), r"--json is for the report of one study and excludes"),
    (("a", "b", "--metric=speed"), r"unknown metric 'speed'; allowed are throughput"),
    (("a", "a"), r"both studies are 'a' with the same trials, which has no difference"),
    (("a", "a", "-o", "site"), r"study 'runs/a' is given twice; name each study once"),
    (("a", "b", "-o", "pipe.html"), r"cannot write 'pipe.html': it is not a regular"),
    (("a", "--format=csv", "-o", "file/x"), r"cannot write 'file/x': .*; choose a fil"),
    (("a", "--format=pdf"), r"--format: 'pdf' is not one of"),
    ((), r"Missing argument 'STUDY\.\.\.'"),
]


@pytest.mark.usefixtures("quick_page")
@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_requests_are_one_line(refuse, make_study, tmp_path, arguments, message):
    for name in {*"abc"} & {*arguments}:
        make_study(name)
    (tmp_path / "pipe.html").mkdir()
    (tmp_path / "file").write_text("")
    err = refuse("report", *arguments)

    assert re.match(f"error: {message}", err), err


@pytest.mark.usefixtures("quick_page")
def test_corrupt_records_are_named_in_every_format(harness, make_study):
    root = make_study("a")
    path = next(root.glob("trials/*/result.json"))
    path.write_text("{")
    for options in ((), ("--format=markdown",), ("--format=json",)):
        code, out, err = harness("report", "a", *options)

        assert exit_codes.USAGE == code
        assert out
        assert re.match(r"error: corrupt record '.*result.json'", err)


GATE = ("gate", "--dry-run", "--workload=resnet50", "--preset=smoke", "--replicas=1")


@pytest.fixture
def make_relay(tmp_path, synthetic):
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


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_two_studies_never_differ(harness, make_relay, factor):
    """Whatever their ratios: the day and the machine's state were not measured."""
    make_relay("a")
    root = make_relay("b", repeats=5)
    for path in root.glob("trials/*/result.json"):
        record = json.loads(path.read_text())
        for turn in record["turns"]:
            taken = factor * (turn["end_ns"] - turn["start_ns"])
            turn["end_ns"] = turn["start_ns"] + round(taken)
        path.write_text(json.dumps(record))
    _, out, err = harness("report", "a", "b", "--format=json")
    comparison = json.loads(out)["comparison"]

    assert comparison["rows"], err
    assert comparison["is_weaker"]
    assert not any(row["differs"] for row in comparison["rows"])
    for form in ("text", "markdown"):
        code, out, err = harness("report", "a", "b", f"--format={form}")
        assert exit_codes.OK == code, err
        assert (
            "a weaker comparison: the two were not measured in the same rounds" in out
        )
        assert "Advice, no verdict: the effect of the day and of the machine" in out
        assert not re.search(r"\d.* differs", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "a", "nothing", "--format=text"), r"'runs/nothing'|'nothing'"),
        (GATE, r"a gate needs a baseline: give --baseline with a git revision or a st"),
        (
            (*GATE, "--baseline=one"),
            r"study 'one' has 1 generation\(s\) .* a spread",
        ),
        ((*GATE, "--baseline=alone"), r"study 'alone' has no primary contrast, so it"),
        (
            (*GATE, "--baseline=HEAD", "--time-budget=3min"),
            r"--time-budget 3min is time for 1 .* of 2.4 min, .* --time-budget 5min or",
        ),
        (
            (*GATE, "--baseline=HEAD", "--metric=peak_memory"),
            r"--dry-run with --metric peak_memory: only gates on throughput are simula",
        ),
    ],
)
def test_what_cannot_be_judged_is_one_line(harness, make_relay, arguments, message):
    studies = {
        "a": {},
        "b": {},
        "one": {"repeats": 1},
        "alone": {"backends": ("in_graph",)},
    }
    for name in {argument.rpartition("=")[2] for argument in arguments} & {*studies}:
        make_relay(name, **studies[name])
    code, _, err = harness(*arguments)

    assert exit_codes.USAGE == code
    assert re.search(rf"^error: .*(?:{message}).*$", err, re.MULTILINE), err


def test_the_outlook_of_a_gate_is_that_of_its_baseline(harness, make_relay, tmp_path):
    make_relay("a")
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
        code, out, err = harness(*GATE, "--baseline=HEAD", f"--time-budget={minutes}")
        assert exit_codes.OK == code, err
        (row,) = re.findall(r"^ +\+0\.0% +(\d\.\d+)", out, re.MULTILINE)
        found[minutes] = float(row)

    assert 0 == found["30min"]
    assert found["40min"] > 0.9
