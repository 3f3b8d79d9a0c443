"""The image: from the locks, for a user without rights, and as the documents run it.

No engine of containers runs here: a stand-in for ``docker`` is called by the command as
it stands, and what it was given is checked. The sweep within is parsed and planned.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import command_line

ROOT = Path(__file__).resolve().parents[2]


def instructions():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    split = (line.partition(" ") for line in joined.splitlines() if line)
    return [(word, rest) for word, _, rest in split]


def test_the_image_is_built_from_the_locks_for_a_user_without_rights():
    """By hash; nothing runs as root once the program is there."""
    words = [word for word, _ in instructions()]
    *locks, own = [rest for _, rest in instructions() if "pip install" in rest]
    stages = [rest.split()[-1] for word, rest in instructions() if word == "FROM"]

    for rest, name in zip(
        locks, ("requirements.lock", "requirements-gpu.lock"), strict=True
    ):
        assert f"--no-deps --require-hashes --requirement {name}" in rest
    assert own.endswith("--no-deps --no-build-isolation --editable .")
    assert ["tools", "packages-cpu", "packages-gpu", "packages-${DEVICE}"] == stages
    assert ["1000:1000"] == [rest for word, rest in instructions() if word == "USER"]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert max(i for i, word in enumerate(words) if word == "RUN") < words.index("USER")


def test_what_an_image_copies_is_there_and_not_ignored():
    """And has no secret and no address in it."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").lower()
    sources = [
        source
        for word, rest in instructions()
        if word == "COPY"
        for source in rest.split()[:-1]
    ]

    assert "*" in ignored
    assert all((ROOT / source).exists() for source in sources)
    assert set(sources) <= {line[1:] for line in ignored if line.startswith("!")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"benchmarks"} <= set(sources)
    assert not re.search(r"://|password|token|secret|index-url", text)


def test_the_dev_container_is_a_stage_of_the_image():
    path = ROOT / ".devcontainer" / "devcontainer.json"
    container = json.loads(path.read_text(encoding="utf-8"))
    build = container["build"]

    assert (path.parent / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
    stages = [rest for word, rest in instructions() if word == "FROM"]
    assert any(stage.endswith(f" AS {build['target']}") for stage in stages)
    assert "harness" == container["remoteUser"]
    assert "make setup" == container["postCreateCommand"]


WITH_VALUE = ("--tag", "--build-arg", "--volume", "--gpus", "--shm-size")
IMAGES = {"replicator-harness": None, "replicator-harness-gpu": "DEVICE=gpu"}
RUNS = "/srv/harness/runs"


def commands_of(text):
    return re.findall(r"^ {4}(docker .*)$", text, re.MULTILINE)


def documented():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    comments = "\n".join(re.findall(r"^# ?(.*)$", text, re.MULTILINE))
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    return commands_of(page) + commands_of(comments.replace("\\\n", ""))


def run_with(docker, command, folder):
    """What a command prints where ``docker`` is a program of ours."""
    program = folder / "docker"
    program.write_text(docker)
    program.chmod(0o755)
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("command", documented())
def test_a_documented_command_for_an_image_is_right(command, tmp_path):
    """What is built exists, what is run was built, and its sweep can be planned."""
    shown = f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    subcommand, *words = json.loads(run_with(shown, command, tmp_path))
    options = {}
    while words and words[0].startswith("-"):
        name = words.pop(0)
        assert name in (*WITH_VALUE, "--rm"), f"nobody says what {name!r} is"
        options[name] = words.pop(0) if name in WITH_VALUE else ""
    if subcommand == "build":
        assert ["."] == words
        assert IMAGES[options["--tag"]] == options.get("--build-arg")
        return
    image, name, *arguments = words
    assert ("run", True) == (subcommand, image in IMAGES)
    assert f"{tmp_path}/runs:{RUNS}" == options["--volume"]
    assert RUNS in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    # NCCL shares memory between the processes of a container.
    assert ("--shm-size" in options) == ("--gpus" in options) == image.endswith("-gpu")
    assert command_line.commands[name].make_context(name, list(arguments)).params
    here = ["cpu" if word == "gpu" else word for word in arguments]
    done = CliRunner().invoke(
        command_line, ["sweep", "--dry-run", *here, "--runs-dir", str(tmp_path / "r")]
    )
    assert not done.exception, done.output


def test_a_program_in_an_image_is_told_of_which(tmp_path, monkeypatch):
    """The command of ``docs/command.md``; its variable is the one that is recorded."""
    page = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")
    (command,) = commands_of(page)
    printed = run_with(
        '#!/bin/sh\nif [ "$1" = image ]; then echo "$@" > asked; echo sha256:0123;'
        ' else printf "%s\\n" "$@"; fi\n',
        command.replace("IMAGE)", "mine)").removesuffix("IMAGE") + "mine",
        tmp_path,
    )

    asked = (tmp_path / "asked").read_text().strip()
    assert "image inspect --format {{.Id}} mine" == asked
    run, option, variable, image = printed.split()
    assert ["run", "--env", "mine"] == [run, option, image]
    name, _, value = variable.partition("=")
    assert "sha256:0123" == value
    monkeypatch.setenv(name, value + "0" * 60)
    words = ("--command=own {replicas}", "--metric=step_time=(x)", "--mode=strong")
    planned = ["sweep", "--dry-run", "--json", *words, "--replicas=1"]
    monkeypatch.chdir(tmp_path)
    plan = json.loads(CliRunner().invoke(command_line, planned).stdout)
    assert value + "0" * 60 == plan["program_code"][""]["container image"]
