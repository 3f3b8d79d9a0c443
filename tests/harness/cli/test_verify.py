"""``verify`` recomputes all figures of a study, and finds every changed digit."""

import json
import random
import re
import shutil

import covering
import pytest
from loads import BUSY, QUIET

from harness.cli import exit_codes
from harness.cli import main as cli
from harness.machine import disturbance
from reports.page.build import write_report
from results.errors import NewerSchemaError, OlderSchemaError
from results.store.manifest import MANIFEST_NAME
from results.store.study_store import Store
from results.verify.check import verify

pytestmark = pytest.mark.processes

OPTIONS = ("--workload=resnet50", "--preset=smoke", "--replicas=1,2", "--mode=weak")
OPTIONS = (*OPTIONS, "--no-match")
SWEEPS = {
    "sequential": (*OPTIONS, "--order=sequential", "--repeats=2", "--budget=8steps"),
    "relay": (*OPTIONS, "--order=relay", "--repeats=2", "--rounds=3", "--budget=none"),
    "one": (*OPTIONS, "--order=relay", "--repeats=1", "--rounds=8", "--budget=none"),
}
NUMBER = re.compile(r"(?<=[\s:\[,])-?\d[\d.]*(?:e-?\d+)?(?=[\s,\]}\n])")
NUM_MUTATIONS = 40 if covering.is_full() else 25
RECORDS = {"trials", "records"}
NUM_DIGITS = 11  # and the point


@pytest.fixture(scope="module")
def studies(tmp_path_factory, overrides, quick_sweeps):
    """Returns a directory with one study per design, measured by the fake worker."""
    root = tmp_path_factory.mktemp("verified")
    number = iter(range(10**6))
    real_rule = overrides | {"void_reason": disturbance.void_reason}
    with quick_sweeps(root) as patch:
        # Every seventh turn is void.
        patch.setattr(
            disturbance,
            "between",
            lambda _before, _after: QUIET if next(number) % 7 else BUSY,
        )
        for name, options in SWEEPS.items():
            code = cli.main(
                ("sweep", *options, f"--study={name}"), run_overrides=real_rule
            )
            assert exit_codes.OK == code
    return root / "runs"


# Of these, the full run has the other designs as well; in every run, the records of all
# of them are verified, and digits of each are changed.
one_design = pytest.mark.parametrize(
    "study",
    [
        "relay",
        *(pytest.param(n, marks=pytest.mark.full) for n in ("sequential", "one")),
    ],
    indirect=True,
)


@pytest.fixture(params=SWEEPS)
def study(studies, tmp_path, request):
    shutil.copytree(studies / request.param, tmp_path / "runs" / request.param)
    return tmp_path / "runs" / request.param


@pytest.fixture
def page(study):
    return write_report(Store.open(study))


def kinds(root):
    return {
        kind.kind: (kind.num_recomputed, kind.num_different, kind.num_missing)
        for kind in verify(Store.open(root)).kinds.values()
    }


def test_a_study_is_verified(study, harness):
    code, out, _ = harness("verify", str(study))
    found = kinds(study)

    assert exit_codes.OK == code
    ratios = {"throughput", "speedup", "efficiency", "ratios of backends"}
    number = sum(of[0] for kind, of in found.items() if kind not in RECORDS)
    assert f"\nverified: {number} headline figures are as recomputed\n" in out
    assert ratios | RECORDS < set(found)
    assert not re.search("^ *page ", out, re.MULTILINE)
    assert all(counts[1:] == (0, 0) for counts in found.values())
    assert ("quality" in found) == (study.name == "sequential")


def unseal(root):
    (root / MANIFEST_NAME).unlink()
    for path in root.rglob("rank_*.jsonl"):
        path.write_text(path.read_text().partition("\n")[2])


@one_design
def test_json_has_the_same(study, harness):
    """For scripts; the full run has the other designs as well."""
    code, out, _ = harness("verify", str(study), "--json")
    data = json.loads(out)

    assert exit_codes.OK == code
    assert [] == data["differences"] == data["missing"]
    assert 10 < sum(kind["num_recomputed"] for kind in data["kinds"])


def numbers_of(path):
    """Yields the text of a record, and where each of its numbers begins and ends."""
    text = path.read_text()
    for match in NUMBER.finditer(text):
        # What can be rounding is no figure: it only decides which turns are void.
        if not text[: match.start()].endswith('_resolution": '):
            yield text, match.start(), match.end()


def with_another_digit(number, generator):
    """Changes one of the first digits; sums are compared to twelve."""
    places = [i for i, sign in enumerate(number.partition("e")[0]) if sign.isdigit()]
    zeros = len(number) - len(number.lstrip("-0."))
    places = [place for place in places if place < zeros + NUM_DIGITS]
    place = generator.choice(places)
    other = generator.choice(sorted(set("123456789") - {number[place]}))
    return number[:place] + other + number[place + 1 :]


def is_found(root):
    try:
        return bool(verify(Store.open(root)).differences)
    except (NewerSchemaError, OlderSchemaError):
        return True


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", ["result.json", "rank_0.jsonl", "turns.jsonl"])
def test_every_changed_digit_is_found(study, name):
    """In any number of a result, of a step or turn, of the load within a turn."""
    generator = random.Random(f"{study.name}/{name}")
    paths = sorted(study.glob(f"trials/*/{name}"))
    if study.name == "sequential" and name == "turns.jsonl":
        assert not paths
        return
    # One trial is enough: the others only make reading slow.
    path = generator.choice(paths)
    numbers = list(numbers_of(path))
    missed = []
    for text, start, end in generator.sample(numbers, min(NUM_MUTATIONS, len(numbers))):
        line = text[:start].rpartition("\n")[2]
        if (
            name == "rank_0.jsonl"
            and '"kind": "step"' not in line
            and ('"kind": "turn"' not in line)
        ):
            continue
        changed = with_another_digit(text[start:end], generator)
        path.write_text(text[:start] + changed + text[end:])
        if not is_found(study):
            missed.append(f"{line[-40:]}{text[start:end]} -> {changed}")
        path.write_text(text)

    assert not missed


def test_a_turn_that_should_be_void_is_found(studies, tmp_path):
    """And one that should not be: the rule is applied anew to the load."""
    root = tmp_path / "relay"
    shutil.copytree(studies / "relay", root)
    found = 0
    for path in root.glob("trials/*/turns.jsonl"):
        text = path.read_text()
        changed = text.replace('"foreign_resolution": 0.031', '"foreign_resolution": 1')
        path.write_text(changed.replace("0.012345678", "1.112345678", 1))
        found += len(verify(Store.open(root)).differences)
        path.write_text(text)

    assert found


@one_design
def test_a_difference_is_named_and_has_its_exit_code(study, harness):
    """The file, the field, both values, and the figures that follow from it."""
    path = min(study.glob("trials/*/result.json"))
    fields = json.loads(path.read_text())
    before = fields["ranks"][0]["step_time_sec"][1]
    fields["ranks"][0]["step_time_sec"][1] = before * 2
    path.write_text(json.dumps(fields))
    code, out, _ = harness("verify", str(study))

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert (
        f"differs: trials/{path.parent.name}/result.json ranks[0].step_time_sec[1]:"
        f" stated {before * 2!r}, recomputed {before!r}"
    ) in out
    assert re.search(r"^not verified: [\d,]+ values? differs?$", out, re.MULTILINE)


@one_design
def test_a_changed_page_is_found(study, page, harness):
    """A figure on the page that the records do not have, and nothing else."""
    code, out, _ = harness("verify", str(study))

    assert exit_codes.OK == code
    assert re.search("^ *page +1 +0 +0 *$", out, re.MULTILINE)

    text = page.read_text()
    start = text.index("images/s") - 3
    while not text[start].isdigit():
        start -= 1
    digit = "1" if text[start] != "1" else "2"
    page.write_text(text[:start] + digit + text[start + 1 :])
    code, out, _ = harness("verify", str(study))

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert "differs: report/index.html line " in out
    assert "made by another version, or changed; make it again with 'report'" in out


@one_design
def test_missing_raw_files_are_never_counted_as_verified(study, harness):
    """One trial first, then all of them; the full run has the other designs as well."""
    unseal(study)
    paths = sorted(study.glob("trials/*/rank_0.jsonl"))
    whole = kinds(study)
    paths[0].unlink()
    code, out, _ = harness("verify", str(study))
    found = kinds(study)

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert f"not verified: trials/{paths[0].parent.name}: no rank_0.jsonl" in out
    assert "partly verified: " in out
    assert (whole["trials"][0] - 1, 0, 1) == found["trials"]
    assert 0 == sum(counts[1] for counts in found.values())

    for path in study.rglob("rank_*.jsonl"):
        path.unlink()
    code, out, _ = harness("verify", str(study))
    assert exit_codes.NOTHING_MEASURED == code
    assert "\nnothing verified: there are no raw observations\n" in out
    assert 0 == sum(counts[0] for counts in kinds(study).values())


def test_loads_that_were_not_stored_are_said(study, harness):
    """Of a relay that was measured before turns.jsonl was written."""
    unseal(study)
    paths = list(study.glob("trials/*/turns.jsonl"))
    for path in paths:
        path.unlink()
    code, out, _ = harness("verify", str(study))

    assert bool(paths) == ("no turns.jsonl" in out)
    assert (exit_codes.SOME_TRIALS_FAILED if paths else exit_codes.OK) == code
