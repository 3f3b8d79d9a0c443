"""Workloads, launchers, formats, sections and metrics of other packages, in
subcommands.
"""

import json
import os
import re
from pathlib import Path

import pytest
from command_lines import install

from harness import ExitCode
from results import Store

__all__ = ["install"]


WORKLOAD = """
from workloads import keras_workload

def model(): ...
def data(): ...

WORKLOAD = keras_workload("mine", model, data, example_unit="images")
"""
LAUNCHER = """
from typing import Annotated

from harness.launch.launchers import Launcher
from harness.options.option import Option, Options

class BoatOptions(Options):
    harbour: Annotated[str, Option(help="Where it lies.")] = "home"

class Boat(Launcher):
    name, summary = "boat", "by boat"
    options = BoatOptions

    def start(self, options):
        from harness.launch.launchers import Local
        assert "far" == options.harbour, options
        return Local()

LAUNCHER = Boat()
"""
SHOWN = """
from results.figures.trial_metrics import TrialMetric
from reports.exports.export_formats import ExportFormat, Output
from reports.page import page

TITLE, SLUG = "Own", "own"

def render(view):
    return page.render_text("<p>{{ of }} &amp; {{ n }}</p>", of="<b>", n=4.25)

def write(study, metric):
    return f"{metric.name}\\n"

METRIC = TrialMetric(name="ranks", title="Ranks", unit="1", is_higher_better=False,
                     of=lambda entry: len(entry.result.ranks), tolerance=0.1)
NEITHER = TrialMetric(name="neither", title="Neither", unit="1",
                      of=lambda entry: float("nan"))
FORMAT = ExportFormat(name="own-format", output=Output.TEXT, writer="shown:write")
"""
NEAR = "--workload=near:WORKLOAD"
PLAN = ("sweep", "--dry-run", "--json", NEAR, "--backends=in_graph")


@pytest.fixture
def near(install, tmp_path):
    path = tmp_path / "near.py"
    path.write_text(WORKLOAD, encoding="utf-8")
    return path


def test_its_code_is_part_of_the_code_digest(near, succeed, refuse, monkeypatch):
    def planned():
        return json.loads(succeed(*PLAN))["study"]

    near.with_name("other.py").write_text("A = 1\n", encoding="utf-8")
    near.write_text(f"import other\n{WORKLOAD}", encoding="utf-8")
    before = planned()
    near.with_name("unused.py").write_text("A = 1\n", encoding="utf-8")
    assert before == planned()
    near.with_name("other.py").write_text("A = 2\n", encoding="utf-8")
    assert before != planned()

    def fail(path):
        raise OSError(5, os.strerror(5), str(path))

    # A study is not one of a plugin without a file that cannot be read.
    near.with_name("other.py").write_text("A = 3\n", encoding="utf-8")
    monkeypatch.setattr("pathlib.Path.read_bytes", fail)
    assert re.search(
        r"error: .*\.py', which is part of the code .*: Input", refuse(*PLAN)
    )


def test_a_study_of_another_state_of_a_plugin_is_not_resumed(
    near, succeed, overrides, refuse
):
    sweep = ("sweep", *PLAN[2:], "--replicas=1", "--mode=weak", "--no-match")
    sweep = (*sweep, "--order=sequential", "--repeats=1", "--study=s")
    succeed(*sweep, overrides=overrides)
    near.write_text(WORKLOAD.replace("images", "apples"), encoding="utf-8")

    for again in (("sweep", "--study", "s"), (*sweep[:-2], "--repeats=2", "--study=s")):
        err = refuse(*again, overrides=overrides)
        assert "was made with another state of workload mine: files '1 (" in err


UNUSABLE = [
    ("--workload=near:model", "is of type function, and has to be a workloads."),
    ("--workload=near.py:WORKLOAD", "name its module, as for 'python -m': near:"),
    ("--workload=afar", "unknown workload 'afar'; known are "),
    (f"{NEAR} --backends=near:WORKLOAD", "is of type Workl"),
    (f"{NEAR} --option=loop=fit --option=jit=compute", "compile() of Keras takes a wh"),
    (f"{NEAR} --launcher=near:WORKLOAD", "Launcher"),
]


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize(("options", "message"), UNUSABLE)
def test_a_name_that_cannot_be_used(harness, options, message):
    code, out, err = harness("sweep", *options.split())

    assert (ExitCode.USAGE, "", 1) == (code, out, err.count("\n"))
    assert message in err
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["boat", "sea:LAUNCHER"])
def test_a_launcher_of_a_package_starts_trials_with_its_options(
    install, succeed, harness, overrides, forked_trials, name
):
    install("sea", LAUNCHER, launchers={"boat": "sea:LAUNCHER"})
    sweep = ("sweep", "--workload=resnet50", "--preset=smoke", "--replicas=1")
    sweep = (*sweep, "--backends=in_graph", "--mode=weak", "--no-match")
    sweep = (*sweep, "--order=sequential", "--repeats=1", "--study=s")

    far = (f"--launcher={name}", "--set=harbour=far")
    succeed(*sweep, *far, overrides=overrides)
    plan = Store.open(next(iter(Path("runs").iterdir())))
    assert "sea_pack 1.2" == plan.read_plan().plugins["launcher boat"]["package"]
    code, _, err = harness(*sweep, "--set=harbour=far", overrides=overrides)
    assert ExitCode.USAGE == code
    assert "--set harbour=far has no effect with --launcher local; add --la" in err


@pytest.mark.usefixtures("finished")
def test_what_a_package_shows_is_in_reports_and_apart_in_verify(install, succeed):
    install(
        "shown",
        SHOWN,
        metrics={"ranks": "shown:METRIC", "neither": "shown:NEITHER"},
        sections={"own": "shown"},
        formats={"own-format": "shown:FORMAT"},
    )
    torn = "TITLE, SLUG = 'Torn', 'torn'\ndef render(view):\n    return 1 / 0\n"
    install("torn", torn, sections={"torn": "torn", "gone": "torn:nothing"})

    succeed("report", "s")
    page = Path("runs/s/report/index.html").read_text().replace("\xa0", " ")
    for text in (
        'data-plugin="shown_pack 1.2"',
        "<p>&lt;b&gt; &amp; 4.25</p>",
        "Figures of shown_pack 1.2",
        "1.00<small>[1.00, 1.00]</small><small>n = 2</small>",
        "This section is missing: ",
    ):
        assert text in page
    assert "throughput\n" in succeed("report", "s", "--format", "own-format")
    out = succeed("verify", "s")
    assert "section 'own' of shown_pack 1.2: what a plugin shows is its own" in out
    assert "section 'figures-1' of shown_pack 1.2" in out

    summary = json.loads(succeed("report", "s", "--format", "json"))
    figures = [
        row for row in summary["figures"] if row["quantity"] in ("ranks", "neither")
    ]
    by_case = {(f["quantity"], f["backend"], f["num_replicas"]): f for f in figures}
    assert 8 == len(figures) == len(by_case)
    ranks = by_case["ranks", "in_graph", 2]
    assert (1.0, 2, 1.0, 1.0) == tuple(
        ranks[name] for name in ("value", "n", "low", "high")
    )
    without = by_case["neither", "in_graph", 2]
    assert "missing" == without["kind"]
    assert "not in every trial a number above zero" == without["method"]
    export = ("report", "s", "--format=github-action-benchmark", "--metric=ranks")
    assert "ranks" in json.loads(succeed(*export))[0]["name"]


@pytest.mark.usefixtures("finished", "forked_trials")
def test_a_metric_of_a_package_is_judged_as_ours_are(install, harness, overrides):
    entries = {"ranks": "shown:METRIC", "neither": "shown:NEITHER"}
    install("shown", SHOWN, metrics=entries)
    gate = ("gate", "--workload=resnet50", "--preset=smoke", "--backends=in_graph")
    gate = (*gate, "--replicas=1,2", "--mode=weak", "--repeats=2", "--baseline=s")
    gate = (*gate, "--order=sequential", "--no-match", "--allow-different")
    for name, said in (
        ("neither", "does not say whether more"),
        ("rank", ", neither, ranks"),
    ):
        code, _, err = harness(*gate, f"--metric={name}", overrides=overrides)
        assert (ExitCode.USAGE, 1) == (code, err.count("\n"))
        assert said in err

    _, out, err = harness(*gate, "--metric=ranks", "--study=g", overrides=overrides)
    assert "ranks against study s" in out, out + err
    assert "worse by 10.0% matters" in out
    assert "the gate judges ranks, which a plugin computes" in harness("verify", "g")[1]


def test_list_shows_where_each_came_from(install, harness):
    assert (0, "plugins: none is installed\n", "") == harness("list", "plugins")
    install("near", WORKLOAD, workloads={"mine": "near:WORKLOAD"})
    install("sea", LAUNCHER, launchers={"boat": "sea:LAUNCHER"})

    code, out, err = harness("list", "plugins")
    assert (0, "") == (code, err)
    assert "a Keras model of the user's (workload of near_pack 1.2, near:WORKL" in out
    assert "by boat (launcher of sea_pack 1.2, sea:LAUNCHER)" in out
    rows = json.loads(harness("list", "--json")[1])
    assert {"mine", "boat"} == {row["name"] for row in rows["plugins"]}

    install("torn", "1 / 0", workloads={"torn": "torn:WORKLOAD"})
    code, out, err = harness("list", "plugins")
    assert ExitCode.USAGE == code
    assert "workload 'torn' of torn_pack 1.2 raises an error when it is impo" in err
    assert "boat" in out
