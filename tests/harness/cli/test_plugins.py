"""Workloads, launchers, formats, sections and metrics of other packages, in verbs."""

import json
import os
from pathlib import Path

import pytest
from plugin_packages import install

from harness.cli import exit_codes
from harness.cli.verbs import gate_request
from harness.errors import PlanError
from harness.sources import code_digest
from results import plugins
from results.figures import frame
from results.store.study_store import Store

__all__ = ["install"]


WORKLOAD = """
from workloads.keras_fit.own_model import keras_workload

def model(): ...
def data(): ...

WORKLOAD = keras_workload("mine", model, data, example_unit="images")
"""
LAUNCHER = """
from typing import Annotated

from harness.launch.launcher import LauncherInfo
from harness.options.option import Option, Options

class BoatOptions(Options):
    harbour: Annotated[str, Option(help="Where it lies.")] = "home"

class Boat(LauncherInfo):
    name, summary = "boat", "by boat"
    options = BoatOptions

    def start(self, options):
        from harness.launch.local import LocalLauncher
        assert "far" == options.harbour, options
        return LocalLauncher()

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
PLAN = (
    "sweep",
    "--dry-run",
    "--json",
    "--workload",
    "near:WORKLOAD",
    "--backends",
    "in_graph",
)


@pytest.fixture
def near(install, tmp_path):
    path = tmp_path / "near.py"
    path.write_text(WORKLOAD, encoding="utf-8")
    return path


def test_a_workload_of_the_folder_is_planned(near, harness):
    code, out, err = harness(*PLAN)

    assert exit_codes.OK == code, err
    plan = json.loads(out)
    spec = plan["trials"][0]["spec"]
    assert ("mine", {"workload": "near:WORKLOAD"}) == (
        spec["workload"],
        spec["plugins"],
    )
    of = plan["plugins"]["workload mine"]
    assert ("near:WORKLOAD", "not an installed package") == (
        of["object"],
        of["package"],
    )
    assert of["files"].startswith("1 (")


def test_its_code_is_part_of_the_code_digest(near, install):
    """What it imports of the same folder too; a file that it does not use is none."""
    from harness import catalog

    near.with_name("other.py").write_text("A = 1\n", encoding="utf-8")
    near.write_text(f"import other\n{WORKLOAD}", encoding="utf-8")
    plugins.use_folder(near.parent)
    assert "images" == catalog.workload("near:WORKLOAD").example_unit

    before = code_digest.of_trial("mine", "in_graph")
    near.with_name("unused.py").write_text("A = 1\n", encoding="utf-8")
    assert before == code_digest.of_trial("mine", "in_graph")
    near.with_name("other.py").write_text("A = 2\n", encoding="utf-8")
    assert before != code_digest.of_trial("mine", "in_graph")
    assert before != code_digest.of_trial("resnet50", "in_graph")


def test_a_file_of_a_plugin_that_cannot_be_read(near, install, monkeypatch):
    """Its study is not one of a plugin without that file."""
    from harness import catalog

    plugins.use_folder(near.parent)
    catalog.workload("near:WORKLOAD")

    def fail(path):
        raise OSError(5, os.strerror(5), str(path))

    monkeypatch.setattr("pathlib.Path.read_bytes", fail)
    with pytest.raises(
        PlanError, match=r"near.py', which is part of the code .*: Input"
    ):
        code_digest.of_trial("mine", "in_graph")


def test_a_study_of_another_state_of_a_plugin_is_not_resumed(near, harness, overrides):
    sweep = ("sweep", *PLAN[2:], "--replicas=1", "--mode=weak", "--no-match")
    sweep = (*sweep, "--order=sequential", "--repeats=1", "--study=s")
    code, _, err = harness(*sweep, overrides=overrides)
    assert exit_codes.OK == code, err
    near.write_text(WORKLOAD.replace("images", "apples"), encoding="utf-8")

    for again in (("sweep", "--study", "s"), (*sweep[:-2], "--repeats=2", "--study=s")):
        code, _, err = harness(*again, overrides=overrides)
        assert exit_codes.USAGE == code
        assert "was made with another state of workload mine: files '1 (" in err
        assert 1 == err.count("\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload=near:WORKLOD"], "has no 'WORKLOD'; it has WORKLOAD"),
        (["--workload=near:model"], "is of type function, and has to be a workloads."),
        (["--workload=near.py:WORKLOAD"], "name its module, as for 'python -m': near:"),
        (["--workload=afar"], "unknown workload 'afar'; known are "),
        (["--workload=near:WORKLOAD", "--backends=near:WORKLOAD"], "is of type Workl"),
        (["--workload=near:WORKLOAD", "--preset=big"], "of mine 'big'; known are own"),
        (["--workload=near:WORKLOAD", "--option=loop=fit", "--option=jit=compute"],
         "compile() of Keras takes a whole step"),
        (["--workload=near:WORKLOAD", "--launcher=near:WORKLOAD"], "LauncherInfo"),
        (["--workload=near:WORKLOAD", "--launcher=ship"], "unknown launcher 'ship'"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_used(near, harness, options, message):
    code, out, err = harness("sweep", *options)

    assert (exit_codes.USAGE, "") == (code, out)
    assert message in err
    assert 1 == err.count("\n")
    assert not (near.parent / "runs").exists()


@pytest.mark.parametrize("name", ["boat", "sea:LAUNCHER"])
def test_a_launcher_of_a_package_starts_trials_with_its_options(
    install, harness, overrides, forked_trials, name
):
    install("sea", LAUNCHER, launchers={"boat": "sea:LAUNCHER"})
    sweep = ("sweep", "--workload=resnet50", "--preset=smoke", "--replicas=1")
    sweep = (*sweep, "--backends=in_graph", "--mode=weak", "--no-match")
    sweep = (*sweep, "--order=sequential", "--repeats=1", "--study=s")

    code, _, err = harness(*sweep, f"--launcher={name}", "--harbour=far",
                           overrides=overrides)  # fmt: skip
    assert exit_codes.OK == code, err
    plan = Store.open(next(iter(Path("runs").iterdir())))
    assert "sea_pack 1.2" == plan.read_plan().plugins["launcher boat"]["package"]
    code, _, err = harness(*sweep, "--harbour=far", overrides=overrides)
    assert exit_codes.USAGE == code
    assert "--harbour far has no effect with --launcher local; add --launcher" in err


def test_what_a_package_shows_is_in_reports_and_apart_in_verify(
    install, harness, finished
):
    install(
        "shown",
        SHOWN,
        metrics={"ranks": "shown:METRIC"},
        sections={"own": "shown"},
        formats={"own-format": "shown:FORMAT"},
    )

    code, out, err = harness("report", "s")
    assert exit_codes.OK == code, err
    root = Store.open(Path("runs/s"))
    page = root.report_path.read_text()
    assert 'data-plugin="shown_pack 1.2"' in page
    assert "<p>&lt;b&gt; &amp; 4.25</p>" in page
    assert (frame.trials_frame(root).ranks == 1).all()
    assert "throughput\n" in harness("report", "s", "--format", "own-format")[1]
    code, out, err = harness("verify", "s")
    assert exit_codes.OK == code, out + err
    assert "section 'own' of shown_pack 1.2: what a plugin shows is its own" in out


def test_a_metric_of_a_package_is_shown_and_judged_as_ours_are(
    install, harness, overrides, forked_trials, finished
):
    entries = {"ranks": "shown:METRIC", "neither": "shown:NEITHER"}
    install("shown", SHOWN, metrics=entries)

    code, out, err = harness("report", "s", "--format", "json")
    assert exit_codes.OK == code, err
    figures = json.loads(out)["figures_of_plugins"]
    assert 8 == len(figures)
    (of,) = (f["figure"] for f in figures if (f["metric"], f["backend"],
             f["num_replicas"]) == ("ranks", "in_graph", 2))  # fmt: skip
    assert (1.0, 2, 1.0, 1.0) == (of["value"], of["n"], of["low"], of["high"])
    without = next(f for f in figures if f["metric"] == "neither")
    assert without["figure"] is None
    assert "not in every trial a number above zero" == without["missing_reason"]
    harness("report", "s")
    page = Store.open(Path("runs/s")).report_path.read_text()
    assert "Figures of shown_pack 1.2" in page
    assert "1.00<small>[1.00, 1.00]</small><small>n = 2</small>" in page.replace(
        "\xa0", " "
    )
    assert "section 'figures-1' of shown_pack 1.2" in harness("verify", "s")[1]
    export = ("report", "s", "--format=github-action-benchmark", "--metric=ranks")
    assert "ranks" in json.loads(harness(*export)[1])[0]["name"]
    assert ", `neither`, `ranks` (plugins)" == gate_request._of_plugins()

    gate = ("gate", "--workload=resnet50", "--preset=smoke", "--backends=in_graph")
    gate = (*gate, "--replicas=1,2", "--mode=weak", "--repeats=2", "--baseline=s")
    gate = (*gate, "--order=sequential", "--no-match", "--allow-different")
    _, out, err = harness(*gate, "--metric=ranks", "--study=g", overrides=overrides)
    assert "ranks against study s" in out, out + err
    assert "worse by 10.0% matters" in out
    assert "the gate judges ranks, which a plugin computes" in harness("verify", "g")[1]
    for name, said in (
        ("neither", "does not say whether more"),
        ("rank", "allowed are"),
    ):
        code, _, err = harness(*gate, f"--metric={name}", overrides=overrides)
        assert exit_codes.USAGE == code
        assert said in err
        assert 1 == err.count("\n")


def test_a_section_that_fails_says_so_in_its_place(install, harness, finished):
    """The study is as good as without it."""
    text = "TITLE, SLUG = 'Own', 'own'\ndef render(view):\n    return 1 / 0\n"
    install("shown", text, sections={"own": "shown:nothing"})
    install("torn", text, sections={"torn": "torn"})

    code, _, err = harness("report", "s")
    assert exit_codes.OK == code, err
    page = Store.open(Path("runs/s")).report_path.read_text()
    assert "This section is missing: " in page


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
    assert exit_codes.USAGE == code
    assert "workload 'torn' of torn_pack 1.2 raises an error when it is impo" in err
    assert "boat" in out


def test_a_built_in_name_is_not_shadowed(install, harness):
    install("near", WORKLOAD, workloads={"resnet50": "near:WORKLOAD"})

    code, _, err = harness(
        "sweep", "--dry-run", "--workload=resnet50", "--preset=smoke"
    )
    assert exit_codes.OK == code, err
    code, _, err = harness("list", "plugins")
    assert exit_codes.USAGE == code
    assert "has the name of a workload of this project, which stays what it is" in err
    assert plugins.used("workloads", "resnet50") is None
