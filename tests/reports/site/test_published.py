"""The published site: its links, and a page that is built from its records again."""

import json
import re
from pathlib import Path

import pytest
import study_files
from click.testing import CliRunner
from command_lines import plain

from harness import command_line
from results import Store, load_study

ROOT = Path(__file__).resolve().parents[3]
NAME, OTHER = "resnet50-two-cores", "peers-resnet50"
LINK = re.compile(r'(?:href|src)="([^"#]+)(?:#[^"]*)?"')
BRACKETS = re.compile(r"\[\d[\d.]*, \d[\d.]*\]")


def records(name):
    return str(study_files.SITE / "studies" / name / "records.zip")


@pytest.fixture(scope="module")
def built(tmp_path_factory, make, synthetic):
    """The site of a study, from its zip, and of a small one."""
    folder = tmp_path_factory.mktemp("site")
    small = make(backends=("in_graph",), modes=(synthetic.WEAK,), repeats=1)
    words = ["report", records(NAME), str(small.root), "-o", str(folder)]
    done = CliRunner().invoke(command_line, words)
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
    environments = (env for case in study.cases for env in case.environments)
    states = {env.machine_state.commit_text for env in environments}
    commits = ", ".join(sorted(states))
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
