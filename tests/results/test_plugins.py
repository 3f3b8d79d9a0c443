"""What packages of others add, and what is said where they cannot be used."""

import math
import re

import pytest
from command_lines import install

from results import Plan, plugins, trials_frame

__all__ = ["install"]

METRIC = """
from results.figures.trial_metrics import TrialMetric

OWN = TrialMetric(name="own_sec", title="Own", unit="s", of=lambda entry: {of})
"""


@pytest.fixture
def column(make, synthetic):
    """Returns a function that reads a column of a study of two trials."""
    store = make(backends=("in_graph",), modes=(synthetic.WEAK,), repeats=1)
    return lambda name="own_sec": trials_frame(store).get(name)


@pytest.mark.parametrize(("of", "value"), [("1.5", 1.5), ("1e999", math.nan)])
def test_an_entry_point_is_found_and_its_package_known(install, column, of, value):
    assert None is column()
    assert plugins.find("formats", {"csv": 1}, "pdf", lambda _: "") is None
    install("mine", METRIC.format(of=of), metrics={"own_sec": "mine:OWN"})
    found = column()
    plugin = plugins.used("metrics", "own_sec")

    assert pytest.approx([value] * 2, nan_ok=True) == found.tolist()
    assert "metric 'own_sec' of mine_pack 1.2" == plugin.what


CODE = METRIC.format(of="1")


@pytest.mark.parametrize(
    ("text", "name", "entry", "message"),
    [
        (
            "1 / 0",
            "own_sec",
            "mine:OWN",
            (
                r"metric 'own_sec' of mine_pack 1\.2 raises an error when it is"
                r" imported: ZeroDivisionError: division by zero \(mine\.py, line 1\);"
                r" repair mine, or uninstall its package$"
            ),
        ),
        ("raise SystemExit('no')", "own_sec", "mine:OWN", "SystemExit: no"),
        (
            "import nosuch_library",
            "own_sec",
            "mine:OWN",
            "needs the module 'nosuch_library', which is not installed; install it in",
        ),
        (CODE, "own_sec", "mine:OWNN", "module 'mine' has no 'OWNN'; it has OWN; "),
        (CODE, "own_sec", "gone:OWN", "there is no module 'gone': its package is dama"),
        (CODE, "own_sec", "results.gone:OWN", "'results' is a package of the harness"),
        ("OWN = 7", "own_sec", "mine:OWN", r"mine:OWN is of type int, and has to be a"),
        (
            CODE.replace("own_sec", "Own time"),
            "Own time",
            "mine:OWN",
            "is called 'Own time', but a column has small letters, digits and _",
        ),
        (CODE, "trial_id", "mine:OWN", "has the name of a metric of this project, whi"),
        (
            CODE.replace("own_sec", "trial_id"),
            "own_sec",
            "mine:OWN",
            "calls itself 'trial_id', which is a metric of this project; choose",
        ),
        (CODE, "other_sec", "mine:OWN", "calls itself 'own_sec'; give its entry point"),
        (
            f"{CODE}HARNESS_API = 9",
            "own_sec",
            "mine:OWN",
            r"was written for version 9 of the interfaces \(HARNESS_API in mine\)",
        ),
    ],
)
def test_one_that_cannot_be_used_is_said_in_one_line(
    install, column, text, name, entry, message
):
    install("mine", text, metrics={name: entry})

    with pytest.raises(plugins.PluginError, match=message) as caught:
        column()
    assert "\n" not in str(caught.value)


def of_any(_):
    """Complains of nothing."""
    return ""


def test_a_name_that_two_have_is_refused(install, column):
    for module in ("mine", "yours"):
        install(module, METRIC.format(of="1"), metrics={"own_sec": f"{module}:OWN"})
    table = {}
    plugins.find("metrics", table, "mine:OWN", of_any)

    with pytest.raises(
        plugins.PluginError, match="calls itself 'own_sec', as mine:OWN does; choose"
    ):
        plugins.find("metrics", table, "yours:OWN", of_any)
    with pytest.raises(
        plugins.PluginError,
        match=r"'own_sec' is in two packages, mine_pack 1\.2 \(mine:OWN\) and"
        r" yours_pack 1\.2 \(yours:OWN\); uninstall one of the two",
    ):
        column()


def test_one_that_imports_tensorflow_is_refused(install, monkeypatch):
    """The planner would take seconds, and memory and GPUs of the trials."""
    install("heavy", "")
    install("mine", "import heavy\n" + METRIC.format(of="1"))
    monkeypatch.setattr(plugins, "_HEAVY", "heavy")

    with pytest.raises(
        plugins.PluginError, match="importing mine imports TensorFlow, which the"
    ):
        plugins.find("metrics", {}, "mine:OWN", of_any)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine.py:OWN", r"names a file; name its module, as for 'python -m': mine:OWN"),
        ("gone:OWN", "it is looked for in the current folder and among installed"),
    ],
)
def test_a_reference_that_names_nothing(install, tmp_path, text, message):
    with pytest.raises(plugins.PluginError, match=message):
        plugins.find("metrics", {}, text, of_any, tmp_path)


def test_a_module_of_the_folder_needs_no_entry_point(install, tmp_path):
    (tmp_path / "near.py").write_text(METRIC.format(of="2"), encoding="utf-8")
    table = {}

    for text in ("near:OWN", "own_sec", "near:OWN"):
        found = plugins.find("metrics", table, text, of_any, tmp_path)
        assert "own_sec" == found.name
    assert (str(tmp_path),) == plugins.folders()
    assert "near:OWN" == plugins.used("metrics", "own_sec").target


def test_a_metric_that_fails_names_the_trial(install, column):
    install("mine", METRIC.format(of="'many'"), metrics={"own_sec": "mine:OWN"})

    with pytest.raises(
        plugins.PluginError,
        match=r"metric 'own_sec' of mine_pack 1\.2 raises an error for trial \w{20}:"
        r" \w+: .* repair it, or uninstall its package",
    ):
        column()


def test_verify_says_what_of_a_study_it_cannot_look_at():
    of = {"object": "a:B", "package": "gone 1.0", "files": "2 (ab)"}
    plan = Plan.model_construct(plugins={"workload mine": of})

    (line,) = plugins.not_covered(plan.plugins)
    assert re.fullmatch(
        r"workload mine is a plugin \(a:B, gone 1\.0, files 2 \(ab\)\), which is not"
        r" installed here: its figures are recomputed, and its code is not looked at",
        line,
    )
