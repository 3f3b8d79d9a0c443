"""The published site: its links, and a page that is built from its records again."""

import json
import re
from pathlib import Path

import pytest
import study_files
from click.testing import CliRunner
from command_lines import plain

from harness import command_line
from reports.site import build
from reports.words import names
from results import Store, load_study

ROOT = Path(__file__).resolve().parents[3]
NAME, OTHER = "resnet50-two-cores", "peers-resnet50"
LINK = re.compile(r'(?:href|src)="([^"#]+)(?:#[^"]*)?"')
BRACKETS = re.compile(r"\[\d[\d.]*, \d[\d.]*\]")


def records(name):
    return str(study_files.SITE / "studies" / name / "records.zip")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site of one study, and of another without figures, from their zips."""
    folder = tmp_path_factory.mktemp("site")
    page_of_one = build.build.page_of

    def page_of(view, links):
        if view.store.root.name == NAME:
            return page_of_one(view, links)
        return "<!DOCTYPE html>\n<html>\n<body>\nLEFT OUT\n</body>\n</html>\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build.build, "page_of", page_of)
        zips = [records(NAME), records(OTHER)]
        done = CliRunner().invoke(command_line, ["report", *zips, "-o", str(folder)])
    assert 0 == done.exit_code, done.output
    return folder


def test_every_link_leads_somewhere(built):
    for folder in (study_files.SITE, built):
        pages = list(folder.rglob("*.html"))
        assert len(pages) > 2
        for page in pages:
            for target in LINK.findall(page.read_text("utf-8")):
                if not re.match(r"https?:|data:|mailto:", target):
                    assert (page.parent / target).exists(), (page, target)


def test_a_page_says_whose_it_is_without_a_click(built):
    page = (built / "studies" / NAME / "index.html").read_text("utf-8")
    closed = re.sub(r"<details(?! open).*?</details>", "", page, flags=re.DOTALL)
    study = load_study(Store.open(study_files.published(NAME)))
    commits = names.commits_text(study.cases)
    published = (study_files.SITE / "studies" / NAME / "index.html").read_text()

    assert "TF-Replicator (Buchlovsky et al. 2019)" in closed
    assert "tf.distribute.MirroredStrategy with the stock Keras update" in closed
    assert "(Apache-2.0)" in closed
    assert commits
    assert f"<code>{commits}</code>" in closed
    assert f"@misc{{{NAME}," in closed
    assert '<meta property="og:description" content="ResNet-50 trains 1.9 times' in page
    assert '<a href="records.zip">' in closed
    # Of the same records; where they differ, write the site again with make site.
    first, kept = (plain(of.partition("</section>")[0]) for of in (page, published))
    assert BRACKETS.findall(kept) == BRACKETS.findall(first) != []


def test_a_zip_needs_a_name_for_its_page():
    done = CliRunner().invoke(command_line, ["report", records(NAME)])

    assert "is a zip file; name the page with -o" in str(done.exception)


def test_the_readme_has_the_ratios_of_the_published_study():
    done = CliRunner().invoke(
        command_line, ["report", records(OTHER), "--format", "json"]
    )
    assert 0 == done.exit_code, done.output
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    mirrored = "`tf.distribute.MirroredStrategy`"
    titles = {"tf_mirrored": mirrored, "torch_ddp": "PyTorch DDP", "jax": "JAX"}

    for row in json.loads(done.stdout)["figures"]:
        is_shown = row["figure"] == "forest" and row["mode"] == "weak"
        is_shown = (
            is_shown and row["num_replicas"] == 2 and row["backend"] == "in_graph"
        )
        if is_shown and row["other_backend"] in titles:
            ratio = "{value:.2f} [{low:.2f}, {high:.2f}]".format(**row)
            assert f"| {titles.pop(row['other_backend'])} | {ratio} |" in readme
    assert {} == titles
