"""The pipelines that users copy: what they may do, and that what they run exists.

``make lint`` audits them with zizmor, and checks them against the schemas of their
hosts: pinned actions, dangerous triggers, expressions in scripts.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from command_lines import commit, git

from harness import command_line

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
GITLAB = ROOT / "docs" / "gitlab" / "pipeline.yml"
PIPELINES = [*WORKFLOWS, GITLAB]

_OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "(", ")", "{", "}", ";;"}
_SUBSTITUTION = re.compile(r"\$\([^()]*\)")
# What a job may do besides reading: (file, job) -> permissions, each with its reason
# beside it in the workflow.
WRITES = {
    ("pull_request.yml", "comment"): {"pull-requests"},
    ("weekly.yml", "publish"): {"pages", "id-token"},
}
SAME_REPOSITORY = "github.event.pull_request.head.repo.full_name == github.repository"
SAME_PROJECT = "$CI_MERGE_REQUEST_SOURCE_PROJECT_ID == $CI_PROJECT_ID"

_USES = re.compile(
    r"^\s*(?:- )?uses: (?P<name>\S+)@(?P<commit>\S+) # (?P<version>\S+)$", re.MULTILINE
)

of_each_workflow = pytest.mark.parametrize(
    "path", WORKFLOWS, ids=lambda path: path.name
)
of_each_pipeline = pytest.mark.parametrize(
    "path", PIPELINES, ids=lambda path: path.name
)


def read(path):
    """Returns a pipeline of strings: ``on`` is a key, not a truth value."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def scripts_in(node):
    """Yields the shell scripts of a pipeline, of either host."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "run" and isinstance(value, str):
                yield value
            elif name == "script":
                yield from value
            else:
                yield from scripts_in(value)
    elif isinstance(node, list):
        for item in node:
            yield from scripts_in(item)


def commands_in(script):
    """Returns the simple commands of a shell script, as lists of words."""
    text = _SUBSTITUTION.sub("WORD", script.replace("\\\n", " "))
    commands = []
    for line in text.splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        current = []
        for word in words:
            if word in _OPERATORS:
                commands.append(current)
                current = []
            else:
                current.append("WORD" if word.startswith("$") else word)
        commands.append(current)
    return [command for command in commands if command]


def arguments_after(words, *start):
    """Returns what follows some words in a command; None if they are not in it."""
    for i in range(len(words) - len(start) + 1):
        if tuple(words[i : i + len(start)]) == start:
            return words[i + len(start) :]
    return None


def harness_commands(path):
    """Returns the arguments of each command of the harness in a pipeline."""
    found = (
        arguments_after(command, "-m", "harness")
        for script in scripts_in(read(path))
        for command in commands_in(script)
    )
    return [arguments for arguments in found if arguments is not None]


def jobs_of(path):
    return read(path)["jobs"]


def is_closed_to_forks(condition):
    """Says whether each way into a job is of this repository: an "or" of conditions."""
    ways = re.split(r"\|\|", condition.replace("\n", " "))
    safe = ("github.event.schedule ==", "github.event_name == 'workflow_dispatch'")
    return all(
        SAME_REPOSITORY in way or way.strip(" ()").startswith(safe) for way in ways
    )


def test_there_is_a_pipeline_for_each_purpose():
    assert ["gpu.yml", "pull_request.yml", "weekly.yml"] == [p.name for p in WORKFLOWS]
    jobs = {"check", "test", "advisory", "gpu-gate", "a-a", "pages"}
    assert jobs <= set(read(GITLAB))


@of_each_workflow
def test_jobs_may_do_what_they_need_and_end(path):
    """Nothing by default; what writes is listed above. No token in the checkout."""
    pipeline = read(path)

    assert {} == pipeline["permissions"]
    assert "bash" == pipeline["defaults"]["run"]["shell"]
    for name, job in pipeline["jobs"].items():
        rights = job["permissions"].items()
        writes = {right for right, level in rights if level != "read"}
        assert writes == WRITES.get((path.name, name), set()), name
        assert int(job["timeout-minutes"]) <= 300, name
        for step in job["steps"]:
            if "actions/checkout@" in step.get("uses", ""):
                assert "false" == step["with"]["persist-credentials"], name


@of_each_workflow
def test_code_of_forks_does_not_run_on_own_machines(path):
    pipeline = read(path)
    open_to_forks = [
        name
        for name, job in pipeline["jobs"].items()
        if "self-hosted" in job["runs-on"]
        and "pull_request" in pipeline["on"]
        and not is_closed_to_forks(job.get("if", ""))
    ]

    assert [] == open_to_forks


def test_the_job_that_writes_runs_no_code_of_the_change():
    """It has no checkout, and runs for branches of the repository only."""
    job = jobs_of(ROOT / ".github/workflows/pull_request.yml")["comment"]

    assert SAME_REPOSITORY in job["if"]
    assert not any("checkout" in step.get("uses", "") for step in job["steps"])
    (command,) = scripts_in(job)
    assert command.startswith("gh pr comment ")


def test_one_version_of_an_action_is_one_commit():
    used = {
        (match["name"], match["version"], match["commit"])
        for path in WORKFLOWS
        for match in _USES.finditer(path.read_text(encoding="utf-8"))
    }

    assert len({name for name, _, _ in used}) == len(used)


@of_each_pipeline
def test_no_pipeline_has_a_secret(path):
    """The token of the job is enough."""
    text = path.read_text(encoding="utf-8").lower()

    assert not re.search(r"secrets\.|password|private_key", text)


def test_one_job_at_a_time_has_the_gpus_and_keeps_its_report():
    """A failed gate is the one whose report is read."""
    for name, job in jobs_of(ROOT / ".github/workflows/gpu.yml").items():
        (upload,) = (s for s in job["steps"] if "upload-artifact" in s.get("uses", ""))
        expected = {"group": "gpu-runner", "cancel-in-progress": "false"}

        assert "self-hosted" in job["runs-on"], name
        assert expected == job["concurrency"], name
        assert "always()" == upload["if"]
        assert "published/" in upload["with"]["path"].split()
    template = read(GITLAB)[".gpu"]
    assert "gpu-runner" == template["resource_group"]
    assert "false" == template["interruptible"]
    assert "always" == template["artifacts"]["when"]


def test_merge_requests_of_forks_do_not_reach_the_gpus():
    """Every rule of a job with the tag is a schedule or of this project."""
    jobs = {
        name: job
        for name, job in read(GITLAB).items()
        if isinstance(job, dict) and job.get("extends") == ".gpu"
    }

    assert {"gpu-gate", "a-a"} == set(jobs)
    for name, job in jobs.items():
        for rule in job["rules"]:
            condition = rule["if"]
            assert SAME_PROJECT in condition or '"schedule"' in condition, name


ALLOWED_UPLOADS = {
    "published/",  # what `report` has exported
    "table.md",
    *("junit.xml", "gate.xml", "test-gpu.xml"),  # what the job's own log says
    *("build/site", "public"),  # made of exported zips
}


def test_studies_are_uploaded_as_published_only():
    """Logs, tracebacks and secrets stay on the machine that measured."""
    uploaded = set()
    for path in WORKFLOWS:
        for job in jobs_of(path).values():
            for step in job.get("steps", []):
                if "/upload-" in step.get("uses", ""):
                    uploaded |= set(step["with"]["path"].split())
    for job in read(GITLAB).values():
        if isinstance(job, dict):
            for kind in ("artifacts", "cache"):
                uploaded |= set(job.get(kind, {}).get("paths", ()))

    assert uploaded <= ALLOWED_UPLOADS
    assert {"published/", "build/site", "public"} <= uploaded


@of_each_pipeline
def test_the_commands_of_the_pipelines_exist(path, tmp_path):
    """Subcommands, options and values; sweeps can be planned; targets and scripts are
    there.

    Values are allowed together, which parsing does not see; here on CPUs.
    """
    for subcommand, *rest in harness_commands(path):
        # The names of the studies of `xargs report` come from its input.
        words = ["WORD", *rest] if rest[:1] == ["-o"] else rest
        assert command_line.commands[subcommand].make_context(subcommand, words).params
        if subcommand != "sweep":
            continue
        here = ["cpu" if word == "gpu" else word for word in rest]
        done = CliRunner().invoke(
            command_line, ["sweep", "--dry-run", *here, "--runs-dir", str(tmp_path)]
        )
        assert not done.exception, done.output
        assert re.search(r"\d+ trials of \d+ cases", done.output)
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

    assert len(named) > 10
    assert [] == sorted(name for name in named if not (ROOT / name).is_file())


# The recipe of ``docs/ci.md`` for ``git bisect run`` with a gate as its test.
(RECIPE,) = re.findall(
    r"```sh\n(git bisect start .*?)^```$",
    (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
GATE = RECIPE[RECIPE.index("replicator-harness") : RECIPE.index("  case")]


def bisect(folder, codes):
    """Runs the recipe; gates exit with the code that their commit holds."""
    git(folder, "init", "--quiet", "--initial-branch=main")
    for index, code in enumerate(codes):
        (folder / "code").write_text(f"{code} {index}")
        commit(folder, "v1.0" if index == 0 else f"c{index}")
    tool = folder / ".git" / "replicator-harness"
    tool.write_text('#!/bin/sh\nread code rest < code\nexit "$code"\n')
    tool.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", RECIPE],
        cwd=folder,
        env={**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    names = [f"c{index}" for index in range(1, len(codes))]
    tags = {git(folder, "rev-parse", name).strip(): name for name in names}
    return done.returncode, done.stdout + done.stderr, tags


@pytest.mark.parametrize("first", [1, 5])
def test_the_first_commit_whose_gate_regresses_is_named(tmp_path, first):
    _, out, tags = bisect(tmp_path, [0] * first + [1] * (6 - first))
    (found,) = re.findall(r"^(\w+) is the first bad commit", out, re.MULTILINE)

    assert f"c{first}" == tags[found], out


@pytest.mark.parametrize("code", [2, 3, 4, 5, 6, 130])
def test_a_gate_without_a_verdict_decides_nothing(tmp_path, code):
    """Inconclusive, failed and unfit: git names a range.

    A command that cannot be carried out would be as wrong of each commit.
    """
    status, out, tags = bisect(tmp_path, [0, 0, code, 1, 1])

    assert status
    if 3 <= code <= 6:
        assert "only 'skip'ped commits left" in out
        named = {name for commit, name in tags.items() if f"\n{commit}\n" in out}
        assert {"c2", "c3"} == named
    else:
        assert "first bad commit" not in out


def test_its_gate_has_options_that_exist():
    _, subcommand, *options = shlex.split(GATE.replace("\\\n", " "))

    assert command_line.commands[subcommand].make_context(subcommand, options).params
