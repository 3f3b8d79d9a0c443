"""Lists in the documents are complete: what is added to the code is added to them."""

import json
import re
from pathlib import Path

import pytest

import replicator.catalog
from harness.launch.launchers import LAUNCHERS
from results import Phase, TrialStatus
from workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def first_cells(text):
    """Returns the first cell of each row of all tables, without backquotes."""
    rows = re.findall(r"^\| *(.*?) *\|", text, re.MULTILINE)
    return [row.replace("`", "") for row in rows]


def test_every_backend_is_described():
    """The table of the replicator's README has the catalogue, and nothing else."""
    text = read("replicator/README.md")
    section = text.partition("## Backends")[2].partition("\n## ")[0]
    names = [cell for cell in first_cells(section) if re.fullmatch(r"[a-z_]+", cell)]

    assert sorted(replicator.catalog.BACKENDS) == sorted(set(names) - {"name"})


def test_every_public_name_is_described():
    text = read("replicator/README.md")
    words = set(re.findall(r"\w+", text))
    public = set(replicator.__all__)

    assert set() == public - words


def test_every_record_is_described():
    text = read("results/README.md")

    for kind in ("plan", "spec", "env", "status", "result"):
        path = f"docs/schema/{kind}.schema.json"
        model = json.loads(read(path))["title"]
        assert f"| `{kind}.json` | `{model}` | `{path}`" in text


PRESETS = {p.name for w in WORKLOADS.values() for p in w.presets}


@pytest.mark.parametrize(
    ("term", "declared"),
    [
        ("status", {status.value for status in TrialStatus}),
        ("phase", {phase.value for phase in Phase}),
        ("launcher", set(LAUNCHERS)),
        ("preset", PRESETS),
    ],
)
def test_the_lists_of_the_glossary_are_those_that_are_declared(term, declared):
    row = re.search(rf"^\| {term} \| (.*) \|$", read("docs/glossary.md"), re.MULTILINE)

    assert row is not None
    assert declared == set(re.findall(r"`(\w+)`", row[1]))


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_workload_says_how_far_it_is_the_paper(name):
    text = read(f"workloads/{name}/README.md")

    assert "## Fidelity" in text
    for preset in WORKLOADS[name].presets:
        assert preset.name in text
