"""The commands for images in ``docs/ci.md`` and in the files of the images.

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

from harness.cli.main import cli
from harness.machine import containers

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
WITH_VALUE = ("--tag", "--build-arg", "--volume", "--gpus", "--shm-size")
FLAGS = ("--rm",)
IMAGES = {"replicator-harness": None, "replicator-harness-gpu": "DEVICE=gpu"}
RUNS = "/srv/harness/runs"


def documented():
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    found = re.findall(r"^ {4}(docker .*)$", page, re.MULTILINE)
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    comments = "\n".join(re.findall(r"^# ?(.*)$", text, re.MULTILINE))
    joined = comments.replace("\\\n", "")
    return found + re.findall(r"^ {4}(docker .*)$", joined, re.MULTILINE)


def called(command, folder):
    program = folder / "docker"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    verb, *words = json.loads(done.stdout)
    options = {}
    while words and words[0].startswith("-"):
        name = words.pop(0)
        assert name in (*WITH_VALUE, *FLAGS), f"nobody says what {name!r} is"
        options[name] = words.pop(0) if name in WITH_VALUE else ""
    return verb, options, words


@pytest.mark.parametrize("command", documented())
def test_a_documented_command_for_an_image_is_right(command, tmp_path):
    """What is built exists, what is run was built, and its sweep can be planned."""
    verb, options, words = called(command, tmp_path)
    if verb == "build":
        assert ["."] == words
        assert IMAGES[options["--tag"]] == options.get("--build-arg")
        return
    image, name, *arguments = words
    assert ("run", True) == (verb, image in IMAGES)
    assert f"{tmp_path}/runs:{RUNS}" == options["--volume"]
    assert RUNS in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    # NCCL shares memory between the processes of a container.
    assert ("--shm-size" in options) == ("--gpus" in options) == image.endswith("-gpu")
    assert cli.commands[name].make_context(name, list(arguments)).params
    here = ["cpu" if word == "gpu" else word for word in arguments]
    done = CliRunner().invoke(
        cli, ["sweep", "--dry-run", *here, "--runs-dir", str(tmp_path / "r")]
    )
    assert not done.exception, done.output


def test_a_program_in_an_image_is_told_of_which(tmp_path):
    """The command of ``docs/command.md``; its variable is the one that is recorded."""
    page = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ {4}(docker .*)$", page, re.MULTILINE)
    program = tmp_path / "docker"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = image ]; then echo "$@" > asked; echo sha256:0123;'
        ' else printf "%s\\n" "$@"; fi\n'
    )
    program.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", command.replace("IMAGE)", "mine)").removesuffix("IMAGE") + "mine"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )

    asked = (tmp_path / "asked").read_text().strip()
    assert "image inspect --format {{.Id}} mine" == asked
    assert ["run", "--env", f"{containers.VARIABLE}=sha256:0123", "mine"] == (
        done.stdout.split()
    )


def test_every_image_is_built_and_run_in_the_documents():
    """The extraction above is not empty by accident."""
    commands = documented()

    assert 8 == len(commands)
    for image in IMAGES:
        assert 2 <= sum(f"{image} " in f"{of} " for of in commands)
