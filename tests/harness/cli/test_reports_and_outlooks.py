"""``report`` of one, two and more studies, and the outlook of ``gate --dry-run``."""

import json
import re
import shutil

import pytest

from harness import ExitCode

SMALL = {"repeats": 3, "num_measured_steps": 3}
INTERLEAVED = {"repeats": 4, "num_rounds": 10, "noise": 0.01}
SHAPES = {
    **dict.fromkeys("abc", SMALL),
    "other": SMALL | {"workload_version": "2"},
    "ours": SMALL | {"backends": ("in_graph",)},
    "theirs": SMALL | {"backends": ("tf_mirrored",)},
    "relay": INTERLEAVED,
    "again": INTERLEAVED | {"repeats": 5},
    "one": INTERLEAVED | {"repeats": 1},
    "alone": INTERLEAVED | {"backends": ("in_graph",)},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def make_study(made, tmp_path, synthetic):
    def make(name):
        root = made / name
        if not root.exists():
            fields = {"modes": (synthetic.WEAK,), "is_evaluated": False, "name": name}
            shape = synthetic.Shape(**(fields | SHAPES[name]))
            synthetic.make_store(root, shape)
            # Another study has other trials; here they differ by when they started.
            for path in root.glob("trials/*/status.json"):
                status = json.loads(path.read_text())
                path.write_text(json.dumps(status | {"started_at": f"{name} o'clock"}))
        return shutil.copytree(root, tmp_path / "runs" / name)

    return make


@pytest.fixture(autouse=True)
def few_gates(monkeypatch):
    monkeypatch.setattr("results.statistics.group_sequential.NUM_GATES", 300)


@pytest.fixture
def abc(make_study):
    for name in "abc":
        make_study(name)


@pytest.fixture
def quick_page(show_page):
    show_page("<html>\n<body>\n<p>a page</p>\n</body>\n</html>\n")


FORMATS = [
    ("a", "text", r"\A\S+ trains .* of ideal .*Brackets are 95.*Evidence, ok: grade A"),
    ("a", "markdown", r"\A### a\n\n\*\*\S+ trains [\d.]+ times as fast on two cores "),
    ("a", "json", r'\A\{\n  "verdict": \{\n    "headline"'),
    ("a", "csv", r"\Astudy,figure,quantity,kind,"),
    ("a b", "text", r"what differs \(A / B\)\n  nothing that is recorded\n"),
    (
        "a b",
        "markdown",
        r"\A### A a, B b\n\n\*\*No interval of 4 shared cases excludes",
    ),
    ("a b", "json", r'"is_comparable": true'),
    ("a b", "csv", r"\nb,scaling,throughput"),
    ("a b c", "text", r"( trains [\d.]+ times .*){3}"),
    ("a b c", "markdown", r"(\] on 2 \|.*){3}"),
    ("a b c", "json", r'("study": "[abc]".*){3}'),
]


@pytest.mark.usefixtures("abc")
def test_studies_are_written_in_every_format(harness, tmp_path):
    for studies, form, expected in FORMATS:
        words = ("report", *studies.split(), "--format", form)
        code, out, err = harness(*words)

        assert (ExitCode.OK, "") == (code, err), (studies, form)
        assert re.search(expected, out, re.DOTALL | re.IGNORECASE), out
        if studies == "a":
            again = harness(*words, "-o", f"folder/{form}")
            assert (ExitCode.OK, f"folder/{form}\n", "") == again
            assert out == (tmp_path / "folder" / form).read_text()


@pytest.mark.usefixtures("abc", "quick_page")
def test_two_studies_make_a_page_and_more_a_site(harness, tmp_path):
    code, out, err = harness("report", "a", "b")
    again = harness("report", "a", "b", "-o", "page.html")
    page = tmp_path / "runs/a/report/compared-with-b.html"

    assert (ExitCode.OK, "runs/a/report/compared-with-b.html\n", "") == (
        code,
        out,
        err,
    )
    assert (ExitCode.OK, "page.html\n", "") == again
    assert page.read_bytes() == (tmp_path / "page.html").read_bytes()
    assert "a and b: what changed?</h1>" in page.read_text()

    sites = []
    for names in ("abc", "cba"):
        code, out, err = harness("report", *names, "-o", "site")
        assert (ExitCode.OK, "site/index.html\n", "") == (code, out, err)
        files = (path for path in tmp_path.glob("site/**/*") if path.is_file())
        sites.append({path: path.read_bytes() for path in files})
    assert 9 == len(sites[0])  # an index, pages of studies and pairs, and records
    assert sites[0] == sites[1]


def test_what_is_not_comparable_is_refused_with_the_fact(refuse, harness, make_study):
    make_study("a")
    make_study("other")
    err = refuse("report", "a", "other")

    assert re.match(
        r"error: 'a' and 'other' are not comparable: workload version: '1' / '2'; measu"
        r"re both on one machine .* or use --allow-different",
        err,
    )
    for options in ((), ("--format=text",)):
        code, out, _ = harness("report", "a", "other", "--allow-different", *options)
        assert ExitCode.INCONCLUSIVE == code
    assert "These two studies are not comparable" in out
    assert "not comparable, shown only: workload version" in out
    assert "code: workload version 1 / 2" in out


GATE = "gate --dry-run --workload=resnet50 --preset=smoke --replicas=1"
# "gate" stands for its words above; studies have no ratio where they share no case.
BAD = r"""
report a b c -> 3 studies need a site; name its directory with -o, such as
report a --format=mlperf -> --format mlperf writes several files; name
report a --json -> --json is no longer an option: use --format json
report a b --metric=speed -> unknown metric 'speed'; allowed are throughput
report a a -> both studies are 'a' with the same trials, which has no differ
report a b -o pipe.html -> cannot write 'pipe.html': it is not a regular
report -> Missing argument 'STUDY\.\.\.'
report ours theirs --allow-different -> no case is in both 'ours' .* and 'thei
gate -> a gate needs a baseline: give --baseline with a git revision or a st
gate --baseline=alone -> study 'alone' has no primary contrast, so it
gate --baseline=HEAD --time-budget=3min -> for 1 .* of 2.4 min, .* --time-budget 5min or
gate --baseline=HEAD --metric=peak_memory -> only gates on throughput are simula
"""


@pytest.mark.usefixtures("quick_page")
@pytest.mark.parametrize("row", BAD.strip().splitlines())
def test_bad_requests_are_one_line(harness, written, make_study, tmp_path, row):
    command, _, message = row.partition(" -> ")
    command = command.replace("gate", GATE, 1)
    for name in {*SHAPES} & {*command.replace("=", " ").split()}:
        make_study(name)
    (tmp_path / "pipe.html").mkdir()
    (tmp_path / "file").write_text("")
    before = written()
    code, out, err = harness(*command.split())
    *notes, last = err.splitlines()

    assert ExitCode.USAGE == code
    assert re.match(f"error: .*{message}", last), last
    assert before == written()
    if command.startswith("report"):
        assert ("", []) == (out, notes)


def test_two_studies_never_differ(harness, make_study):
    """Whatever their ratios: the day and the machine's state were not measured."""
    make_study("relay")
    for path in make_study("again").glob("trials/*/result.json"):
        record = json.loads(path.read_text())
        for block in record["blocks"]:
            taken = 1.5 * (block["end_ns"] - block["start_ns"])
            block["end_ns"] = block["start_ns"] + round(taken)
        path.write_text(json.dumps(record))
    _, out, err = harness("report", "relay", "again", "--format=json")
    comparison = json.loads(out)["comparison"]

    assert comparison["rows"], err
    assert comparison["is_weaker"]
    assert not any(row["differs"] for row in comparison["rows"])
    for form in ("text", "markdown"):
        code, out, err = harness("report", "relay", "again", f"--format={form}")
        assert ExitCode.OK == code, err
        assert (
            "a weaker comparison: the two were not measured in the same rounds" in out
        )
        assert "Advice, no verdict: the effect of the day and of the machine" in out
        assert not re.search(r"\d.* differs", out)


def test_the_outlook_says_that_a_pass_needs_time_for_15_repetitions(harness):
    found = {}
    for minutes in ("30min", "40min"):
        gate = (*GATE.split(), "--baseline=HEAD", f"--time-budget={minutes}")
        code, out, err = harness(*gate)
        assert ExitCode.OK == code, err
        (row,) = re.findall(r"^ +\+0\.0% +(\d\.\d+)", out, re.MULTILINE)
        found[minutes] = float(row)

    assert 0 == found["30min"]
    assert found["40min"] > 0.9
