"""The pipelines that users copy: what they may do, and that what they run exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pipelines import (
    GITLAB,
    PIPELINES,
    ROOT,
    WORKFLOWS,
    arguments_after,
    commands_in,
    harness_commands,
    read,
    scripts_in,
)

from harness.cli.main import cli

# What a job may do besides reading: (file, job) -> permissions, each with its reason
# beside it in the workflow.
WRITES = {
    ("pull_request.yml", "comment"): {"pull-requests"},
    ("weekly.yml", "publish"): {"pages", "id-token"},
}
ACTION = ROOT / ".github" / "actions" / "gate" / "action.yml"
SAME_REPOSITORY = "github.event.pull_request.head.repo.full_name == github.repository"
SAME_PROJECT = "$CI_MERGE_REQUEST_SOURCE_PROJECT_ID == $CI_PROJECT_ID"
# These run with rights that a fork must not have.
PRIVILEGED_TRIGGERS = {"pull_request_target", "workflow_run", "issue_comment"}

_USES = re.compile(
    r"^\s*(?:- )?uses: (?P<target>\S+)(?: # (?P<version>\S+))?$", re.MULTILINE
)
_PIN = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")


def jobs_of(pipeline):
    return pipeline["jobs"]


def too_many_permissions(name, pipeline):
    """Returns the jobs that may do more than they need, or do not say what."""
    wrong = [] if pipeline.get("permissions") == {} else ["the workflow itself"]
    for job, content in jobs_of(pipeline).items():
        rights = content.get("permissions")
        if not isinstance(rights, dict):
            wrong.append(job)
            continue
        writes = {right for right, level in rights.items() if level != "read"}
        if writes != WRITES.get((name, job), set()):
            wrong.append(job)
    return wrong


def own_machines_open_to_forks(pipeline):
    """Returns the jobs by which a fork could run its code on a machine of one's own."""
    by_pull_requests = "pull_request" in pipeline["on"]
    return [
        job
        for job, content in jobs_of(pipeline).items()
        if "self-hosted" in content["runs-on"]
        and by_pull_requests
        and not is_closed_to_forks(content.get("if", ""))
    ]


def is_closed_to_forks(condition):
    """Says whether each way into a job is of this repository: an "or" of conditions."""
    ways = re.split(r"\|\|", condition.replace("\n", " "))
    safe = ("github.event.schedule ==", "github.event_name == 'workflow_dispatch'")
    return all(
        SAME_REPOSITORY in way or way.strip(" ()").startswith(safe) for way in ways
    )


def unpinned(text):
    """Returns the actions without a whole commit and its version beside it."""
    return [
        match["target"]
        for match in _USES.finditer(text)
        if not _PIN.fullmatch(match["target"])
        or not re.fullmatch(r"v\d+\.\d+\.\d+", match["version"] or "")
    ]


def run_check(program, *arguments):
    """Runs a checker of the environment; returns what it prints, or nothing if fine."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_audit_of_workflows_finds_nothing():
    """With zizmor, and without a network: ``make lint`` runs the same."""
    audited = (".github/workflows", str(ACTION))
    assert "" == run_check("zizmor", "--offline", "--quiet", *audited)


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.name)
def test_pipelines_match_the_schemas_of_their_hosts(path):
    """As the hosts publish them; misspelt keys are found here and not there."""
    schema = ["--builtin-schema", "vendor.github-workflows"]
    if path == GITLAB:
        schema = ["--builtin-schema", "vendor.gitlab-ci", "--data-transform"]
        schema.append("gitlab-ci")

    assert "" == run_check("check-jsonschema", *schema, str(path))


def test_the_action_matches_the_schema_of_its_host():
    """Its scripts run in ``tests/release/``."""
    schema = ("--builtin-schema", "vendor.github-actions")

    assert "" == run_check("check-jsonschema", *schema, str(ACTION))


def test_there_is_a_pipeline_for_each_purpose():
    assert ["gpu.yml", "pull_request.yml", "weekly.yml"] == [p.name for p in WORKFLOWS]
    jobs = {"check", "test", "advisory", "gpu-gate", "a-a", "pages"}
    assert jobs <= set(read(GITLAB))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_may_do_what_they_need(path):
    """Nothing by default; what writes is listed above."""
    assert [] == too_many_permissions(path.name, read(path))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_code_of_forks_runs_without_rights_and_not_on_own_machines(path):
    """No trigger that has rights, and no job on a machine of one's own."""
    pipeline = read(path)

    assert set() == PRIVILEGED_TRIGGERS & set(pipeline["on"])
    assert [] == own_machines_open_to_forks(pipeline)


def test_the_job_that_writes_runs_no_code_of_the_change():
    """It has no checkout, and runs for branches of the repository only."""
    job = read(ROOT / ".github/workflows/pull_request.yml")["jobs"]["comment"]

    assert SAME_REPOSITORY in job["if"]
    assert not any("checkout" in step.get("uses", "") for step in job["steps"])
    (command,) = scripts_in(job)
    assert command.startswith("gh pr comment ")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned(path):
    """By a whole commit, with its version for readers."""
    text = path.read_text(encoding="utf-8")

    assert [] == unpinned(text)
    assert text.count("uses:") == len(_USES.findall(text))


def test_one_version_of_an_action_is_one_commit():
    found = {}
    for path in WORKFLOWS:
        for match in _USES.finditer(path.read_text(encoding="utf-8")):
            name, _, commit = match["target"].partition("@")
            found.setdefault((name, match["version"]), set()).add(commit)

    assert len({name for name, _ in found}) == len(found)
    assert {1} == {len(commits) for commits in found.values()}


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.name)
def test_no_pipeline_has_a_secret(path):
    """The token of the job is enough."""
    text = path.read_text(encoding="utf-8").lower()

    assert not re.search(r"secrets\.|password|private_key", text)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_scripts_take_expressions_as_variables(path):
    """What a branch or title contains is never part of a script."""
    pipeline = read(path)

    assert [] == [script for script in scripts_in(pipeline) if "${{" in script]
    assert "bash" == pipeline["defaults"]["run"]["shell"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_ends(path):
    """A limit of its own, and no token in the checkout."""
    for name, job in jobs_of(read(path)).items():
        assert int(job["timeout-minutes"]) <= 300, name
        for step in job["steps"]:
            if "actions/checkout@" in step.get("uses", ""):
                assert "false" == step["with"]["persist-credentials"], name


def test_one_job_at_a_time_has_the_gpus():
    for name, job in jobs_of(read(ROOT / ".github/workflows/gpu.yml")).items():
        assert "self-hosted" in job["runs-on"], name
        expected = {"group": "gpu-runner", "cancel-in-progress": "false"}
        assert expected == job["concurrency"], name
    template = read(GITLAB)[".gpu"]
    assert "gpu-runner" == template["resource_group"]
    assert "false" == template["interruptible"]


def test_merge_requests_of_forks_do_not_reach_the_gpus():
    """Every rule of a job with the tag is a schedule or of this project."""
    pipeline = read(GITLAB)
    jobs = {
        name: job
        for name, job in pipeline.items()
        if isinstance(job, dict) and job.get("extends") == ".gpu"
    }

    assert {"gpu-gate", "a-a"} == set(jobs)
    for name, job in jobs.items():
        for rule in job["rules"]:
            condition = rule["if"]
            assert SAME_PROJECT in condition or '"schedule"' in condition, name


def test_reports_are_kept_whatever_the_verdict():
    """A failed gate is the one whose report is read."""
    for job in jobs_of(read(ROOT / ".github/workflows/gpu.yml")).values():
        (upload,) = (s for s in job["steps"] if "upload-artifact" in s.get("uses", ""))
        assert "always()" == upload["if"]
        assert "published/" in upload["with"]["path"].split()
    assert "always" == read(GITLAB)[".gpu"]["artifacts"]["when"]


ALLOWED_UPLOADS = {
    "published/",  # what `report` has exported
    "table.md",
    *("junit.xml", "gate.xml", "test-gpu.xml"),  # what the job's own log says
    *("build/site", "public"),  # made of exported zips
}


def test_studies_are_uploaded_as_published_only():
    """Logs, tracebacks and secrets stay on the machine that measured."""
    uploaded = set()
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        for job in jobs_of(read(path)).values():
            for step in job.get("steps", []):
                if "/upload-" in step.get("uses", ""):
                    uploaded |= set(step["with"]["path"].split())
    for job in read(GITLAB).values():
        if isinstance(job, dict):
            for kind in ("artifacts", "cache"):
                uploaded |= set(job.get(kind, {}).get("paths", ()))

    assert uploaded <= ALLOWED_UPLOADS
    assert {"published/", "build/site", "public"} <= uploaded


HARNESS = [
    pytest.param(arguments, id=f"{path.name}: {' '.join(arguments[:4])} {i}")
    for path in PIPELINES
    for i, arguments in enumerate(harness_commands(path))
]


@pytest.mark.parametrize("arguments", HARNESS)
def test_the_commands_of_the_harness_parse(arguments):
    """Verb, options and values are known; nothing is run."""
    verb, *rest = arguments
    # The names of the studies of `xargs report` come from its input.
    rest = ["WORD", *rest] if rest[:1] == ["-o"] else rest

    assert cli.commands[verb].make_context(verb, rest).params


@pytest.mark.parametrize(
    "arguments",
    [param for param in HARNESS if param.values[0][0] == "sweep"],
)
def test_the_sweeps_can_be_planned_here(arguments, tmp_path):
    """Values are allowed together, which parsing does not see; here on CPUs."""
    here = ["cpu" if word == "gpu" else word for word in arguments[1:]]
    done = CliRunner().invoke(
        cli, ["sweep", "--dry-run", *here, "--runs-dir", str(tmp_path)]
    )

    assert not done.exception, done.output
    assert re.search(r"\d+ trials of \d+ cases", done.output)


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.name)
def test_the_targets_and_programs_of_the_pipelines_exist(path):
    """Targets of the Makefile, and scripts of this tree."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for script in scripts_in(read(path)):
        for command in commands_in(script):
            made = arguments_after(command, "make")
            assert made is None or set(made) <= targets
            for word in command:
                assert not word.endswith(".py") or (ROOT / word).is_file()


def test_the_programs_of_the_makefile_exist():
    """A file that was renamed would end a target that few people run."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:tests|benchmarks|docs)/[\w/.-]+\.py", makefile))

    assert len(named) > 15
    assert [] == sorted(name for name in named if not (ROOT / name).is_file())
