"""How one point is measured again, and how drawings are made smaller."""

import shlex

import pytest
from click.testing import CliRunner

from harness.cli import main
from reports.charts import compact
from reports.view.view import view_store
from reports.words import reproduce


@pytest.fixture(scope="module")
def view(tmp_path_factory, synthetic):
    return view_store(synthetic.make_store(tmp_path_factory.mktemp("study")))


def test_the_command_of_a_point_plans_the_point(view, tmp_path):
    """It is a command line that the harness accepts, as a dry run."""
    point = next(p for p in view.points if p.num_replicas == 2)
    words = shlex.split(reproduce.command(view.study.plan, point))
    arguments = [
        "sweep",
        "--dry-run",
        *words[words.index("sweep") + 1 :],
        "--runs-dir",
        str(tmp_path),
    ]
    done = CliRunner().invoke(main.cli, arguments)

    assert 0 == done.exit_code, done.output
    assert point.backend in done.output
    assert ["--replicas", "1,2"] == words[words.index("--replicas") :][:2]
    assert ["--seed", "7"] == words[words.index("--seed") :][:2]


def test_options_of_the_point_replace_those_of_the_sweep(view):
    """In both spellings; those of the workload stay."""
    command = (
        "python",
        "-m",
        "harness",
        "sweep",
        "--backends",
        "a,b",
        "--replicas=1..8",
    )
    command += ("--preset", "smoke", "--study", "x")
    plan = view.study.plan.model_copy(update={"command": command})
    text = reproduce.command(plan, view.points[0])

    assert 1 == text.count("--backends") == text.count("--replicas")
    assert "--preset smoke" in text
    assert "--study" not in text
    other = plan.model_copy(update={"command": ("python", "-m", "harness", "gate")})
    assert "" == reproduce.command(other, view.points[0])


def test_commit_and_seeds_of_a_point_are_those_of_its_trials(view):
    """Records of a folder without git say so."""
    assert "1000, 1001, 1002" == reproduce.seeds(view.points[0].case)
    assert "not recorded" == reproduce.commits(view.points[0].case)


def test_a_drawing_is_smaller_and_says_the_same():
    """Texts keep their spaces; groups with attributes and marks stay."""
    text = (
        '<g>\n<g clip-path="url(#a)">\n'
        '<use href="#m" x="1" y="2" style="fill: red; stroke: blue"/>\n'
        '<use href="#m" x="3" y="4" style="fill: red; stroke: blue"/>\n</g>\n'
        '<g/>\n<path d="M 0 0 \nL 1 2 \n" style="fill: none"/>\n'
        "<text>a, b: c; d</text>\n</g>"
    )

    assert (
        '<g clip-path="url(#a)" style="fill:red;stroke:blue">'
        '<use href="#m" x="1" y="2"/>\n<use href="#m" x="3" y="4"/>\n</g>\n'
        '<path d="M0 0L1 2" style="fill:none"/>\n<text>a, b: c; d</text>'
    ) == compact.compact(text).strip()


def test_marks_of_different_styles_keep_them():
    """A group has one style only."""
    mark = '<use href="#m" x="{}" style="fill: {}"/>'
    marks = mark.format(1, "red") + mark.format(2, "blue")

    assert marks.replace(": ", ":") in compact.compact(
        f'<g clip-path="url(#a)">{marks}</g>'
    )
