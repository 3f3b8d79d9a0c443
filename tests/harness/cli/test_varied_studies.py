"""``sweep --vary``: a study for each value of one setting, and a page of all."""

import json
import re
import shutil

import pytest
from command_lines import overridden, smoke_sweep

from harness import ExitCode
from results import Store

pytestmark = pytest.mark.processes
SWEEP = smoke_sweep("--replicas=1,2 --repeats=2 --order=sequential --no-match")
BATCHES = (*SWEEP, "--mode=strong", "--study=s", "--vary=global-batch-size=8,16")
FIRST, SECOND = "s/global-batch-size-8", "s/global-batch-size-16"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return tmp_path_factory.mktemp("template") / "s"


@pytest.fixture
def made(succeed, overrides, forked_trials, tmp_path, template):
    study = tmp_path / "runs" / "s"
    if not template.exists():
        succeed(*BATCHES, "--budget=20steps", overrides=overrides)
        shutil.copytree(study, template)
    elif not study.exists():
        shutil.copytree(template, study)
    return tmp_path / "runs"


def page_of(runs):
    return (runs / "s" / "report" / "index.html").read_text()


def test_each_value_has_the_study_that_it_would_have_alone(made, succeed):
    plans = {name: Store.open(made / name).read_plan() for name in (FIRST, SECOND)}
    alone = ("--mode=strong", "--global-batch-size=8", "--budget=20steps")
    out = succeed("sweep", "--dry-run", "--json", *SWEEP[1:], *alone)

    assert [trial["trial_id"] for trial in json.loads(out)["trials"]] == [
        trial.trial_id for trial in plans[FIRST].trials
    ]
    assert {16} == {t.spec.global_batch_size for t in plans[SECOND].trials}
    text = " ".join(plans[FIRST].command)
    assert "--vary" not in text
    assert text.endswith(
        "--global-batch-size 8 --runs-dir runs/s --study global-batch-size-8"
    )


def test_the_page_has_a_row_per_value_and_case(made):
    page = page_of(made)
    rows = re.findall(
        r'<th scope="row"><a href="([^"]+)">(\d+)</a></th>(.*?)</tr>', page
    )
    batches = [re.findall(r"<td.*?>(.*?)</td>", cells)[3] for _, _, cells in rows]

    assert "s: global-batch-size varied" in page
    assert [value for _, value, _ in rows] == batches
    assert {"8", "16"} == set(batches)
    assert "../global-batch-size-8/report/index.html" == rows[0][0]
    assert 'id="quality"' in page
    assert 'id="speed"' in page
    assert page.count("<svg") >= 2


def test_the_same_command_resumes_and_more_values_extend(
    made, succeed, harness, overrides, forked_trials
):
    (lost, *kept) = made.glob("s/*/trials/*/status.json")
    lost.unlink()
    before = {path: path.stat().st_mtime_ns for path in kept}
    (made / "s" / "report" / "index.html").unlink()
    succeed("sweep", "--study", "s", overrides=overrides)
    assert lost.is_file()
    assert ">16</a>" in page_of(made)

    extended = [word.replace("8,16", "16,24") for word in BATCHES]
    words = overridden(extended, "--repeats=1", "--budget=20steps")
    code, _, err = harness(*words, overrides=overrides)

    assert ExitCode.OK == code, err
    assert "study global-batch-size-16: resumed" in err
    names = json.loads((made / "s" / "vary.json").read_text())["studies"]
    assert [f"global-batch-size-{size}" for size in (8, 16, 24)] == names
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert ">24</a>" in page_of(made)


@pytest.mark.usefixtures("made")
def test_the_verbs_of_a_study_take_all_or_one(succeed, refuse):
    lines = succeed("status", "s").splitlines()
    assert [FIRST, SECOND] == [line for line in lines if "/" in line]
    succeed("status", FIRST, "--json")
    err = refuse("status", "s", "--json")
    assert "--json is for one study, and 's' has 2" in err
    rows = json.loads(succeed("list", "studies", "--json"))["studies"]
    assert [FIRST, SECOND] == sorted((row["name"] for row in rows), key=len)
    cells = re.split(r"[,\n]", succeed("report", "s", "--format=csv"))
    assert {"8", "16"} <= set(cells)


def test_the_page_is_verified_with_its_studies(made, harness):
    path = made / "s" / "report" / "index.html"
    written = page_of(made)
    code, out, _ = harness("verify", "s")
    path.write_text(written.replace("not between values", "and between values"))
    changed, said, _ = harness("verify", "s")

    assert "differs" not in out
    assert ExitCode.OK == code
    assert ExitCode.SOME_TRIALS_FAILED == changed
    assert "index.html is not what the records say" in said
    names = made / "s" / "vary.json"
    record = json.loads(names.read_text())
    record["studies"].reverse()
    names.write_text(json.dumps(record))
    assert ExitCode.OK == harness("report", "s")[0]
    assert sorted(re.findall(r"<tr>.*</tr>", written)) == sorted(
        re.findall(r"<tr>.*</tr>", page_of(made))
    )


@pytest.mark.parametrize("is_renewed", [False, True])
def test_a_study_that_is_left_out_is_named(made, harness, is_renewed):
    path = made / "s" / "vary.json"
    record = json.loads(path.read_text())
    left_out = record["studies"].pop()
    path.write_text(json.dumps(record))
    if is_renewed:
        Store(path.parent).list_file(path.name)
        assert ExitCode.OK == harness("report", "s")[0]
    code, out, _ = harness("verify", "s")

    assert ExitCode.SOME_TRIALS_FAILED == code
    assert f"differs: {left_out}/: stated not in vary.json" in out
    assert is_renewed != ("differs: vary.json: " in out)
