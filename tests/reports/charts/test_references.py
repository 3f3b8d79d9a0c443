"""Published figures stand beside those of a study, cited, with what differs."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import pytest

from reports.charts import references
from reports.page import build
from reports.page.sections import scaling
from reports.view import reference_points
from reports.view.reference_points import ReferencesError
from reports.view.view import view_store
from results.records.models import ScalingMode

if TYPE_CHECKING:
    import pathlib

OWN = """
sources:
  - title: Our own cluster
    year: 2026
    workload: resnet50
    mode: weak
    differences: [another network card]
    series:
      - name: H100, our program
        examples_per_sec: {1: 100, 2: 190, 4: 380}
"""


def test_the_published_points_are_those_of_their_sources() -> None:
    """Throughput as printed there; efficiency where one device was measured."""
    found = {
        (mark.series, mark.num_devices): (mark.examples_per_sec, mark.efficiency)
        for name in ("nvidia", "mlperf")
        for mark in references.marks(reference_points.read(name))
    }
    expected = {
        ("A100, TF32 and XLA", 8): (7000, 0.963),
        ("A100, mixed precision and XLA", 8): (17400, 0.916),
        ("V100 (DGX-1), mixed precision and XLA", 8): (9510, 0.936),
        ("V100 (DGX-2), mixed precision and XLA", 16): (17250, 0.829),
        ("H100", 8): (56050, None),
        ("H100", 64): (294700, None),
        ("V100 (DGX-1, DGX-2)", 16): (22214, None),
        ("TPU v3", 256): (237433, None),
    }

    for key, (rate, efficiency) in expected.items():
        assert rate == found[key][0]
        if efficiency is None:
            assert found[key][1] is None
        else:
            assert efficiency == pytest.approx(found[key][1], abs=5e-4)
    assert (909, 2375, 1270, 1300) == tuple(
        rate for (_, count), (rate, _) in found.items() if count == 1
    )


def test_every_source_is_cited_and_says_what_differs() -> None:
    """Title, year and address; letters follow the order of the files."""
    assert ("mlperf", "nvidia") == reference_points.names()
    for name in reference_points.names():
        for source in reference_points.read(name):
            assert source.title
            assert source.differences
            assert source.url.startswith("https://")
            assert 2015 < source.year < 2027
    marks = references.marks(reference_points.read("nvidia"))
    assert list("aabbccdd") == [mark.letter for mark in marks]


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Any:
    """Returns a function that writes a file of references, and returns its path."""

    def run(old: str = "", new: str = "") -> str:
        assert not old or old in OWN
        path = tmp_path / "own.yaml"
        path.write_text(OWN.replace(old, new) if old else OWN)
        return str(path)

    return run


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "workload:",
            "worklaod:",
            (
                r"source 1: unknown key 'worklaod'; did you mean 'workload'\? allowed"
                r" are title, year, url, workload, mode, differences, series"
            ),
        ),
        (
            "examples_per_sec:",
            "example_per_sec:",
            (
                r"source 1, series 1: unknown key 'example_per_sec'; did you mean"
                r" 'examples_per_sec'\? allowed are name, examples_per_sec"
            ),
        ),
        ("sources:", "source:", r"unknown key 'source'; did you mean 'sources'\?"),
        ("    year: 2026\n", "", r"source 1: the key 'year' is missing"),
        (
            "2026",
            "soon",
            r"source 1: 'year' is 'soon': input should be a valid integer",
        ),
        ("weak", "week", r"'mode' is 'week': input should be 'weak' or 'strong'"),
        (
            "    mode: weak\n",
            "",
            r"source 1: 'mode' is missing, but a series has a figure for 1 device",
        ),
        (
            "380",
            "-3",
            (
                r"series 1: examples_per_sec at 4 devices is -3: input should be"
                r" greater than 0"
            ),
        ),
        ("4: 380", "four: 380", r"series 1: a number of devices is 'four': input"),
        ("4: 380", "1: 380", r"line 10: the key 1 stands twice"),
        ("[another network card]", "[]", r"'differences' is \[\]: .* at least 1 item"),
        ("sources:\n", "sources: [\n", r"line \d+: .*; correct the file"),
        (OWN, "", r"is None; it must have the keys sources"),
        ("name: H100, our program", "3", r".*; correct the file"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(
    write: Any, old: str, new: str, message: str
) -> None:
    """Where it is, what is allowed, and the nearest name."""
    with pytest.raises(ReferencesError, match=message) as caught:
        reference_points.read(write(old, new))

    assert "\n" not in str(caught.value)
    assert "own.yaml'" in str(caught.value)
    assert "correct the file" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["nvidea"],
            (
                r"--references 'nvidea': No such file or directory; did you mean"
                r" 'nvidia'\? allowed are mlperf, nvidia, none, and YAML files"
            ),
        ),
        (["none", "nvidia"], r"--references: 'none' stands beside other names"),
        (["/"], r"--references '/': it is not a regular file; give a YAML"),
    ],
)
def test_a_name_that_is_none_is_one_line(
    tmp_path: pathlib.Path, synthetic: Any, given: list[str], message: str
) -> None:
    """Before anything is drawn."""
    store = synthetic.make_store(tmp_path / "s")
    with pytest.raises(ReferencesError, match=message):
        build.build_report(store, given)


def test_references_of_another_workload_are_one_line(
    tmp_path: pathlib.Path, synthetic: Any, write: Any
) -> None:
    """They would be compared with figures of another unit."""
    store = synthetic.make_store(tmp_path / "s")
    path = write("resnet50", "sngan")
    with pytest.raises(
        ReferencesError,
        match=r"has figures of sngan, but the study is of resnet50; give other",
    ):
        reference_points.choose([path], store.read_plan())


def test_a_file_whose_aliases_grow_is_one_line(tmp_path: pathlib.Path) -> None:
    """Ten lines can stand for 10 ** 9 values, which nobody writes out."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 10):
        inner = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{inner}]")
    path = tmp_path / "aliases.yaml"
    path.write_text("\n".join([*lines, "sources: [*a9]"]))
    with pytest.raises(ReferencesError, match=r"unknown key 'a0'; allowed are sources"):
        reference_points.read(str(path))
    path.write_text("sources: &s\n- &t [*s, *s]\n")
    with pytest.raises(ReferencesError, match=r"recursive node; correct the file"):
        reference_points.read(str(path))


def test_a_file_that_is_too_large_is_one_line(tmp_path: pathlib.Path) -> None:
    """Something else was meant."""
    path = tmp_path / "big.yaml"
    path.write_text("#" * 200_000)
    with pytest.raises(ReferencesError, match=r"of at most 100000 bytes"):
        reference_points.read(str(path))


def test_they_are_shown_for_studies_on_gpus_unless_asked(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """Of the same workload, in a plan on GPUs; a study on CPUs has none."""
    plan = synthetic.make_store(tmp_path / "s").read_plan()
    trials = plan.trials

    def on(**fields: Any) -> Any:
        made = [
            t.model_copy(update={"spec": t.spec.model_copy(update=fields)})
            for t in trials
        ]
        return plan.model_copy(update={"trials": tuple(made)})

    assert () == reference_points.choose((), plan)
    assert () == reference_points.choose((), on(device="gpu", workload="sngan"))
    assert () == reference_points.choose(("none",), on(device="gpu"))
    assert 4 == len(reference_points.choose((), on(device="gpu")))
    assert 1 == len(reference_points.choose(("nvidia",), plan))


def test_the_figure_of_efficiency_has_marks_and_the_table_says_what_differs(
    tmp_path: pathlib.Path, synthetic: Any, write: Any
) -> None:
    """In the panel of their mode only; other figures stay as they were."""
    shape = synthetic.Shape(backends=("in_graph",), repeats=2)
    store = synthetic.make_store(tmp_path / "s", shape)
    plain = scaling.render(view_store(store))
    page = build.build_report(store, ["mlperf", write()])
    figures = dict(
        re.findall(r'<desc id="([a-z]+-(?:weak|strong))-desc">(.*?)</desc>', page)
    )

    assert "Published" not in plain
    assert "Published: a (H100, our program) 95" in figures["efficiency-weak"]
    assert [] == [
        slug
        for slug, text in figures.items()
        if "Published" in text and slug != "efficiency-weak"
    ]
    assert "Our own cluster, 2026. What differs: another network card." in page
    assert re.search(r"<td>H100</td><td class=\"n\">8</td>.*throughput only", page)
    assert "://" not in page


def test_a_mark_beyond_the_axis_is_in_the_table_only(write: Any) -> None:
    """The axis is that of the study."""
    sources = reference_points.read(write())
    weak = ScalingMode.WEAK

    assert re.search(r"at 2\W.*at 4\W", references.describe(sources, weak, [1, 2, 4]))
    assert "at 4" not in references.describe(sources, weak, [1, 2])
    assert "" == references.describe(sources, weak, [1])
    assert "" == references.describe(sources, ScalingMode.STRONG, [1, 2, 4])
    assert "" == references.describe((), weak, [1, 2, 4])
    assert 3 == len(references.marks(sources))


def test_letters_do_not_end(write: Any) -> None:
    """The 27th series is aa."""
    (source,) = reference_points.read(write())
    many = [dataclasses.replace(mark) for mark in references.marks([source] * 28)]

    assert ["z", "aa", "ab"] == [mark.letter for mark in many[75::3]]
