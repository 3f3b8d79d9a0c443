"""The published site: what its records give again, each figure with its interval."""

import json
import re
from pathlib import Path

import covering
import published_studies
import pytest
from click.testing import CliRunner

from harness.cli import main
from reports.exports import exports
from reports.page.sections import overview
from reports.site import build
from reports.site.card import make_card
from reports.view.view import view_store
from reports.words import formats, next_step
from results.store.study_store import Store
from results.study.cases import load_study

MOST_BYTES_OF_A_STUDY = 10_000_000  # D4PG has 60 steps a second, and each is kept
DRAWN = ("resnet50-two-cores",)
LINK = re.compile(r'(?:href|src)="([^"#]+)(?:#[^"]*)?"')
BRACKETS = re.compile(r"\[\d[\d.]*, \d[\d.]*\]")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site of one study and another without figures, or of all, from the zips."""
    folder = tmp_path_factory.mktemp("site")
    zips = [
        str(published_studies.SITE / "studies" / name / "records.zip")
        for name in published_studies.NAMES
    ]
    report = build.build.build_report

    def build_report(store, *args):
        if store.root.name in DRAWN or covering.is_full():
            return report(store, *args)
        return "<!DOCTYPE html>\n<html>\n<body>\nLEFT OUT\n</body>\n</html>\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build.build, "build_report", build_report)
        done = CliRunner().invoke(main.cli, ["report", *zips, "-o", str(folder)])
    assert 0 == done.exit_code, done.output
    return folder


@pytest.fixture(scope="module")
def drawn(built):
    """The pages that were built, by their paths."""
    pages = {
        path.relative_to(built).as_posix(): path.read_text("utf-8")
        for path in built.rglob("*.html")
    }
    return {name: page for name, page in pages.items() if "LEFT OUT" not in page}


def test_every_published_page_is_built_again(built, drawn):
    """From nothing but the zips; with the intervals of first screens and the index."""

    def pages(folder):
        return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.html"))

    assert pages(published_studies.SITE) == pages(built)
    assert {"index.html", f"studies/{DRAWN[0]}/index.html"} <= set(drawn)
    for name, page in drawn.items():
        kept = (published_studies.SITE / name).read_text("utf-8")
        found = [BRACKETS.findall(of.partition("</section>")[0]) for of in (page, kept)]
        assert found[0] == found[1], f"{name}: write it again with make site"


def test_every_link_leads_somewhere(built, drawn):
    for name, page in drawn.items():
        for target in LINK.findall(page):
            if not re.match(r"https?:|data:|mailto:", target):
                assert ((built / name).parent / target).exists(), (name, target)


@pytest.mark.parametrize("name", published_studies.NAMES)
def test_records_are_the_same_bytes_beside_a_page_built_again(built, name):
    """So a site can be kept under version control; records, no logs, and small."""
    beside = f"studies/{name}/records.zip"
    kept = (published_studies.SITE / beside).read_bytes()
    files = [p for p in published_studies.study(name).rglob("*") if p.is_file()]
    kinds = {path.suffix for path in files if path.name != "SHA256SUMS"}

    assert kept == (built / beside).read_bytes()
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES_OF_A_STUDY
    assert kinds <= {".json", ".jsonl", ".png"}


def test_a_page_says_whose_it_is_without_a_click(drawn):
    """Project, backends in words, licence, commit, citation, preview, records."""
    for name in DRAWN:
        page = drawn[f"studies/{name}/index.html"]
        closed = re.sub(r"<details(?! open).*?</details>", "", page, flags=re.DOTALL)
        study = load_study(Store.open(published_studies.study(name)))
        commits = next_step.commits_of(study.cases)

        assert "TF-Replicator (Buchlovsky et al. 2019)" in closed
        assert "tf.distribute.MirroredStrategy with the stock Keras update" in closed
        assert "(Apache-2.0)" in closed
        assert commits
        assert all(f"<code>{commit}</code>" in closed for commit in commits)
        assert f"@misc{{{name}," in closed
        assert '<meta property="og:description" content="With caution' in page
        assert '<a href="records.zip">' in closed


def test_a_zip_needs_a_name_for_its_page():
    """What is unpacked is removed, and a page within would be lost."""
    path = published_studies.SITE / "studies" / DRAWN[0] / "records.zip"
    done = CliRunner().invoke(main.cli, ["report", str(path)])

    assert "is a zip file; name the page with -o" in str(done.exception)


ROOT = Path(__file__).resolve().parents[3]
STUDIES = [published_studies.study(name) for name in published_studies.NAMES]
NUMBER = r"\d[\d.]*"
INTERVAL = re.compile(rf"({NUMBER})(?: %|{formats.TIMES})? \[{NUMBER}, {NUMBER}\]")
FIGURE = re.compile(rf"{NUMBER}(?: %|{formats.TIMES})(?! [Ii]ntervals| \(|, n =)")
"""A percentage or a ratio; "95 % intervals" and "95 %, n = 5" are none."""


def _plain(html):
    text = re.sub(
        r"<svg.*?</svg>|<ul.*?</ul>|<figure.*?</figure>", "", html, flags=re.DOTALL
    )
    # Thousands are apart by a space that is no gap between words.
    text = re.sub(rf"(?<=\d){formats.THIN_SPACE}(?=\d)", "", text)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


@pytest.fixture(scope="module", params=STUDIES, ids=lambda path: path.name)
def view(request):
    return view_store(Store.open(request.param))


def _first_screen(view):
    page = ROOT / "docs" / "reports" / "studies" / view.study.plan.study / "index.html"
    text = page.read_text(encoding="utf-8")
    return text[text.index('<section id="verdict"') : text.index("</section>")]


def test_the_first_screen_has_every_interval(view):
    """And is that of the records: what was read is what a build would write."""
    text = _plain(_first_screen(view))
    num_rows = len(view.study.backends) * len(view.study.modes)

    assert len(INTERVAL.findall(text)) >= 2 * num_rows + 1
    assert FIGURE.findall(text)
    for figure in FIGURE.finditer(text):
        assert INTERVAL.match(text, figure.start()), text[figure.start() - 40 :][:90]
    assert _plain(str(overview.render_verdict(view))) in text


def test_card_and_markdown_have_every_interval(view):
    """The index of studies, and what is pasted into a pull request."""
    card = make_card(view, "any")
    shown = [_plain(card.verdict), *(_plain(of.text) for of in card.sparks)]
    lines = exports.as_markdown(view.store).splitlines()
    # The badge, the verdict and the table; limits are not figures of the study.
    shown += [
        _plain(line.replace("`", "").replace("\\", ""))
        for line in lines
        if not line.startswith("- ")
    ]

    for text in shown:
        for figure in FIGURE.finditer(text):
            assert INTERVAL.match(text, figure.start()), text


def test_the_readme_has_the_ratios_of_the_published_study():
    """Of two replicas in weak scaling, to the last digit shown."""
    archive = published_studies.SITE / "studies" / "peers-resnet50" / "records.zip"
    done = CliRunner().invoke(main.cli, ["report", str(archive), "--format", "json"])
    assert 0 == done.exit_code, done.output
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    mirrored = "`tf.distribute.MirroredStrategy`"
    titles = {"tf_mirrored": mirrored, "torch_ddp": "PyTorch DDP", "jax": "JAX"}

    for found in json.loads(done.stdout)["comparisons"]:
        is_shown = found["modes"] == ["weak"] and found["num_replicas"] == 2
        if is_shown and found["first"] == "in_graph" and found["second"] in titles:
            ratio = "{value:.2f} [{low:.2f}, {high:.2f}]".format(**found["ratio"])
            assert f"| {titles.pop(found['second'])} | {ratio} |" in readme
    assert {} == titles
