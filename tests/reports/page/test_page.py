"""The page as a document: offline, identical, accessible, escaped, small."""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import html.parser
import os
import pathlib
import re
import subprocess
import sys

import matplotlib as mpl
import pytest
from command_lines import visible

import reports
import results
from reports import render_section, view_store
from results import Budget, BudgetUnit

BUILD = """
import pathlib, sys
from reports import build_report
from results import Store
sys.stdout.write(build_report(Store.open(pathlib.Path(sys.argv[1]))))
"""
SCRIPTS = [
    pathlib.Path(reports.__file__).parent / "page" / "templates" / name
    for name in ("report.js", "tips.js")
]


class Outline(html.parser.HTMLParser):
    """Collects what the tests ask about."""

    def __init__(self):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, list[str]]] = []

    def handle_starttag(self, tag, attrs):
        for _, children in self.inside:
            children.append(tag)
        self.tags.append((tag, dict(attrs)))
        if tag in {"table", "svg"}:
            self.inside.append((tag, []))

    def values(self, name):
        return [value for _, attrs in self.tags if (value := attrs.get(name))]


@pytest.fixture(scope="module")
def store(make, synthetic):
    learning = {"budget": synthetic.LEARNING, "num_learning_runs": 3}
    return make(dataclasses.replace(synthetic.BROKEN, has_actors=True, **learning))


@pytest.fixture(scope="module")
def page(store):
    return reports.build_report(store)


@pytest.fixture(scope="module")
def outline(page):
    parsed = Outline()
    parsed.feed(page)
    return parsed


@pytest.mark.full
@pytest.mark.processes
def test_another_process_gives_the_same_bytes(store, page):
    """With another hash seed, another time zone and another place of the store."""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4242",
        "TZ": "Pacific/Auckland",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SOURCE_DATE_EPOCH": "1",
    }
    completed = subprocess.run(
        [sys.executable, "-c", BUILD, os.path.relpath(store.root)],
        capture_output=True,
        check=True,
        env=environment,
    )

    assert page == completed.stdout.decode()


def test_the_settings_of_the_reader_change_nothing(store, page):
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.id": "x"}):
        before = dict(mpl.rcParams)
        drawn = render_section("verdict", view_store(store))

        assert before == dict(mpl.rcParams)
    assert "<svg" in drawn
    assert drawn in page


def test_page_reaches_for_nothing_outside(page, outline):
    references = outline.values("href")
    files = [url for url in references if url[0] != "#"]
    pictures = outline.values("src")

    assert "://" not in page
    assert "@import" not in page
    assert files
    assert all(url.startswith("data:text/csv;charset=utf-8,") for url in files)
    assert {"#"} == {found[0] for found in re.findall(r"url\((.)", page)}
    assert pictures
    assert all(url.startswith("data:image/png;base64,") for url in pictures)
    assert {"link", "iframe"}.isdisjoint(tag for tag, _ in outline.tags)


def test_the_only_script_is_ours_and_no_other_is_allowed(page):
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    ours = [path.read_text(encoding="utf-8").strip() for path in SCRIPTS]
    assert "\n".join(ours) == script.strip()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")


def test_ids_are_unique_and_every_reference_resolves(outline):
    counts = collections.Counter(outline.values("id"))
    wanted = {url[1:] for url in outline.values("href") if url[0] == "#"}
    for text in outline.values("aria-labelledby"):
        wanted.update(text.split())

    assert {1} == set(counts.values())
    assert wanted <= set(counts)


def test_figures_speak_and_tables_are_labelled(outline, page):
    figures = [attrs for tag, attrs in outline.tags if tag == "svg" and "role" in attrs]
    drawings = re.findall(r'<svg viewBox="[^"]*" role="img".*?</svg>', page, re.DOTALL)
    tables = [children for tag, children in outline.inside if tag == "table"]
    scopes = {attrs.get("scope") for tag, attrs in outline.tags if tag == "th"}
    tags = collections.Counter(tag for tag, _ in outline.tags)

    assert len(figures) >= 5
    assert len(figures) == len(drawings) == tags["desc"]
    for figure, drawing in zip(figures, drawings, strict=True):
        assert figure["role"] == "img"
        assert 2 == len(figure["aria-labelledby"].split())
        assert "var(--series-0)" in drawing
        assert not re.search(r":\s*#[0-9a-f]+", drawing)
        assert "font-family" not in drawing
    assert len(tables) == tags["caption"]
    assert {"col", "row"} == scopes


def test_every_trial_is_listed_and_named_nowhere_else(store, page):
    planned = {trial.trial_id for trial in store.read_plan().trials}
    names = {trial_id[:8] for trial_id in planned}
    before = visible(page.partition('<section id="trials"')[0])

    assert planned == set(re.findall(r'<tr id="trial-(\w+)"', page))
    assert not [name for name in names if name in before]


def test_text_from_trials_is_escaped(page):
    assert 1 == page.count("<script")
    assert page.count("&lt;script&gt;alert(") >= 1


def test_report_lies_where_it_was_asked_for(tmp_path, make, synthetic):
    store = make(backends=("in_graph",), modes=(synthetic.WEAK,), repeats=1)
    page = reports.build_report(store)
    path = tmp_path / "a" / "report.html"
    (tmp_path / "file").write_text("")

    assert path == reports.write_report(store, path)
    default = reports.write_report(store)
    assert store.root / "report" / "index.html" == default
    assert page == path.read_text("utf-8") == default.read_text("utf-8")
    with pytest.raises(
        results.WriteStoreError, match=r"cannot write report .*choose a"
    ):
        reports.write_report(store, tmp_path / "file" / "report.html")


def test_a_study_of_quality_runs_only_has_no_figure_of_throughput(make, synthetic):
    fields = {"budget": synthetic.LEARNING, "num_learning_runs": 3}
    page = reports.build_report(make(repeats=0, replicas=(2,), **fields))
    titles = " ".join(re.findall(r"<h2[^>]*>(.*?)</h2>", page, re.DOTALL))

    assert "Learning" in titles
    assert not re.search("All cases|Steps|memory", titles)


@pytest.mark.parametrize(
    ("what", "why_not"),
    [
        ("link", "it is a symbolic link"),
        ("text", "it is not a PNG picture"),
        ("large", f"{2**30} bytes, at most {2**24} are read"),
    ],
)
def test_what_is_no_picture_is_not_published(tmp_path, synthetic, what, why_not):
    """A link would put a file of whoever builds the page on it, base64."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    budget = Budget(amount=9, unit=BudgetUnit.STEPS, num_evaluations=1)
    shape = synthetic.Shape(
        backends=("in_graph",), modes=(synthetic.WEAK,), repeats=1, budget=budget
    )
    store = synthetic.make_store(tmp_path / "s", shape)
    path = min(store.root.glob("trials/*/samples_*.png"))
    path.unlink()
    if what == "link":
        path.symlink_to(secret)
    elif what == "text":
        path.write_text("secret")
    else:
        with path.open("wb") as file:
            file.truncate(2**30)

    shown = render_section("learning", view_store(store))
    (pictures,) = re.findall(
        r'<div class="pictures">.*?</div>\n</div>', shown, re.DOTALL
    )

    assert [why_not] == re.findall(": not shown, since (.*)</figcaption>", pictures)
    assert 0 < pictures.count("<img") == pictures.count("<figure>") - 1


SIZES = (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize(
    ("least_trials", "most_bytes", "settings"),
    [
        (95, 700_000, {"replicas": (1, 2, 4, 8), "repeats": 7}),
        pytest.param(
            300,
            1_500_000,
            {
                "backends": ("single", "in_graph", "tf_mirrored", "multi_worker"),
                "replicas": SIZES,
                "baseline_batch_size": 64,
                "repeats": 5,
                "num_learning_runs": 5,
            },
            marks=pytest.mark.full,
        ),
    ],
    ids=["100 trials", "310 trials"],
)
def test_a_page_stays_small(make, synthetic, least_trials, most_bytes, settings):
    budget = synthetic.LEARNING if "num_learning_runs" in settings else None
    store = make(budget=budget, **settings)

    assert len(store.trial_ids()) >= least_trials
    assert len(reports.build_report(store).encode()) <= most_bytes
