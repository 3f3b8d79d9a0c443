"""Each export is read back, by the program that it is for."""

import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from command_lines import written
from study_files import write_benchmarks

import reports
from reports import FORMATS
from results import ResultsError, load_study, points_frame, statistics
from results.judging import METRICS

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs/schema/report.schema.json").read_text()
)


@pytest.mark.parametrize("name", ["complete", "broken", "failed"])
def test_json_has_verdict_and_figures(name, request):
    data = json.loads(reports.as_json(request.getfixturevalue(name)))

    jsonschema.validate(data, SCHEMA)
    assert data["verdict"]["headline"]
    assert 3 == data["report_version"]
    for field in ("verdict", "figures", "coverage"):
        rest = {key: value for key, value in data.items() if key != field}
        with pytest.raises(jsonschema.ValidationError, match=field):
            jsonschema.validate(rest, SCHEMA)


def test_markdown_fits_a_pull_request(complete, failed):
    lines = reports.as_markdown(complete).splitlines()
    of_failed = reports.as_markdown(failed)

    assert lines[0] == "### resnet50-laptop-synthetic"
    assert re.match(r"\*\*ResNet-50 trains 1\.\d times as fast on two cores", lines[2])
    assert 6 == sum(line.startswith(("| in_graph", "| tf_")) for line in lines)
    assert any(line.startswith("- Intervals are 95 %") for line in lines)
    assert 40 >= len(lines)
    assert "**Nothing was measured" in of_failed
    assert "| backend" not in of_failed


def test_markdown_of_a_large_study_has_at_most_forty_lines(make, synthetic):
    fields = {"modes": (synthetic.WEAK,), "repeats": 2, "num_measured_steps": 2}
    large = make(replicas=tuple(range(1, 25)), **fields)
    text = reports.as_markdown(large)

    assert 40 >= len(text.splitlines())
    command = f"python -m harness report {large.read_plan().study} --format csv"
    assert f"30 more cases: `{command}`." in text
    assert re.search(
        r"\| in_graph \| weak \| 24 \N{MULTIPLICATION SIGN} 8 .*oversub", text
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", r"a\|b"),
        ("a*b", r"a\*b"),
        ("<b>", "&lt;b>"),
        ("[x](y)", r"[x]\(y)"),
        ("[1, 2]", "[1, 2]"),
        ("`x`", r"\`x\`"),
        ("@someone", "&#64;someone"),
        ("fixes #1, #b", "fixes &#35;1, #b"),
        ("https://a.example/x", "https:&#47;&#47;a.example/x"),
        ("www.a.example", "www&#46;a.example"),
        ("two\nlines", "two lines"),
    ],
)
def test_text_of_records_is_no_markdown(text, expected):
    assert expected == written("escaped(text)", text=text)


def test_csv_is_the_frame_that_figures_draw(complete, broken):
    csv = FORMATS["csv"].export([complete, broken], THROUGHPUT)
    read = pd.read_csv(io.StringIO(csv), low_memory=False)
    points = points_frame(complete)

    assert ["study", *points.columns] == [*read.columns]
    assert len(points) + len(points_frame(broken)) == len(read)
    assert points["value"].tolist() == read["value"].tolist()[: len(points)]


THROUGHPUT = METRICS["throughput"]
# As its documentation and the type of its source say: name, value, unit, and two texts.
ACTION = FORMATS["github-action-benchmark"]
GITHUB_ACTION_BENCHMARK = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "unit": {"type": "string"},
            "value": {"type": "number"},
            "range": {"type": "string"},
            "extra": {"type": "string"},
        },
    },
}


@pytest.fixture(scope="module")
def store(make, synthetic):
    return make(budget=synthetic.LEARNING, num_learning_runs=2)


@pytest.fixture(scope="module")
def logs(store, tmp_path_factory):
    """The logs for MLPerf, one per trial that is ok."""
    folder = tmp_path_factory.mktemp("logs")
    files = FORMATS["mlperf"].export([store], THROUGHPUT)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def test_the_parser_of_mlperf_reads_every_line(store, logs):
    parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser")
    constants = importlib.import_module("mlperf_logging.mllog.constants")
    known = {of for of in vars(constants).values() if isinstance(of, str)}
    study = load_study(store)
    cases = (*study.cases, *study.quality_runs)

    assert sum(len(case.ok_entries) for case in cases) == len(logs)
    for path in logs:
        lines, errors = parser.parse_file(str(path), ruleset="4.0.0")
        assert [] == errors
        assert len(path.read_text().splitlines()) == len(lines)
        assert {line.key for line in lines} - known <= {"tracked_stats"}
        times = [line.timestamp for line in lines]
        assert sorted(times) == times
        keys = [line.key for line in lines]
        order = ["init_start", "init_stop", "run_start", "run_stop"]
        assert order == [key for key in keys if key in order]
    entry = study.quality_runs[0].ok_entries[0]
    learning = next(path for path in logs if "learning" in str(path))
    lines, _ = parser.parse_file(str(learning), ruleset="4.0.0")
    curve = [line.value["value"] for line in lines if line.key == "eval_accuracy"]
    stats = [line.value["value"] for line in lines if line.key == "tracked_stats"]
    assert [point.quality[0].value for point in entry.result.curve] == curve
    assert entry.result.examples_per_sec == stats[-1]["throughput"]


def test_the_rules_of_mlperf_object_to_what_a_study_is_not(logs):
    compliance = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
    learning = next(path for path in logs if "learning" in str(path))
    checker = compliance.make_checker("training", "3.1.0", True, False)
    is_valid = checker.check_file(str(learning), "training_3.1.0/common.yaml")

    assert not is_valid
    assert {"cache_clear", "eval_accuracy"} == checker.overwritable.keys()
    assert "'epoch_num' in v" in checker.overwritable["eval_accuracy"]
    assert [] == checker.not_overwritable
    assert {} == checker.warnings


def test_pytest_benchmark_shows_the_cases(store, tmp_path):
    text = FORMATS["pytest-benchmark"].export([store], THROUGHPUT)
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path in paths:
        path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", *map(str, paths)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    shown = done.stdout + done.stderr

    assert 0 == done.returncode, shown
    cases = load_study(store).cases
    for case in cases:
        assert case.label in shown
    assert "Outliers" in shown
    first = json.loads(text)["benchmarks"][0]["stats"]
    batch = cases[0].spec.global_batch_size
    rates = [entry.result.examples_per_sec for entry in cases[0].ok_entries]
    times = sorted(batch / rate for rate in rates)
    assert (times[0], times[1], times[2], 3) == tuple(
        first[name] for name in ("min", "median", "max", "rounds")
    )
    assert "" == json.loads(text)["machine_info"]["node"]


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda of: of.name)
def test_github_action_benchmark_has_one_row_per_case(store, metric):
    rows = json.loads(ACTION.export([store], metric))
    jsonschema.validate(rows, GITHUB_ACTION_BENCHMARK)
    cases = load_study(store).cases

    assert len({row["name"] for row in rows}) == len(rows) == len(cases)
    values = [metric.of(entry) for entry in cases[0].ok_entries]
    assert statistics.geometric_mean(values, unit="").value == rows[0]["value"]
    assert rows[0]["name"].endswith(f": {metric.name}")
    units = {"throughput": "images/s", "peak_memory": "bytes"}
    assert {units.get(metric.name, "s")} == {row["unit"] for row in rows}


def test_a_metric_that_no_trial_has_is_refused_by_name(tmp_path, synthetic):
    store = synthetic.make_store(tmp_path, synthetic.Shape(repeats=1))
    zero = {"time_to_first_step_sec": 0.0}
    for trial in store.trials():
        ranks = tuple(of.model_copy(update=zero) for of in trial.result.ranks)
        result = trial.result.model_copy(update={"ranks": ranks})
        store.write_result(trial.trial_id, result)
    metric = METRICS["time_to_first_step"]

    with pytest.raises(
        ResultsError,
        match=r"no case of study '.*' has time_to_first_step of every trial, so there"
        r" is nothing to export; choose another --metric",
    ):
        ACTION.export([store], metric)


def test_junitparser_counts_the_verdicts_of_a_gate(tmp_path, monkeypatch):
    junitparser = pytest.importorskip("junitparser")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3]))
    micro = importlib.import_module("benchmarks.micro")
    old = {"test_a": (1.0, 1.01, 0.99), "test_b": (1.0, 1.01, 0.99), "test_c": [1.0]}
    new = {**old, "test_b": (2.0, 2.01, 1.99)}
    change, baseline = (
        micro.read(write_benchmarks(tmp_path / name, times))
        for name, times in (("new.json", new), ("old.json", old))
    )
    gate = micro.judged(change, baseline, name="old.json", delta=0.05, alpha=0.05)
    text = reports.GATE_FORMATS["junit"](reports.gate_record(gate))
    (found,) = junitparser.JUnitXml.fromstring(text.encode())
    results = {case.name: [type(of).__name__ for of in case.result] for case in found}

    assert {
        "bench.py::test_a": [],
        "bench.py::test_b": ["Failure"],
        "bench.py::test_c": ["Skipped"],
        "all": ["Failure"],
    } == results
    assert (4, 2, 0) == (found.tests, found.failures, found.errors)
    assert 1 == found.skipped


@pytest.mark.parametrize("name", [name for name, of in FORMATS.items() if of.writer])
def test_a_study_without_a_figure_is_one_line_or_an_empty_table(failed, name):
    export = FORMATS[name].export
    if name in {"csv", "zip"}:
        assert export([failed], THROUGHPUT)
        return
    with pytest.raises(ResultsError, match=r"(no trial that is ok|no case of these)"):
        export([failed], THROUGHPUT)


def test_equal_records_give_equal_bytes(store):
    for form in FORMATS.values():
        if form.writer:
            first = form.export([store], THROUGHPUT)
            assert first == form.export([store], THROUGHPUT), form.name
