"""Every command of the pipelines exists, with the options that they give it."""

import re

import pytest
from click.testing import CliRunner
from pipelines import (
    PIPELINES,
    ROOT,
    arguments_after,
    commands_in,
    harness_commands,
    read,
    scripts_in,
)

from harness.cli.main import cli

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


def test_what_is_checked_is_found():
    """The extraction above is not empty by accident."""
    verbs = [param.values[0][0] for param in HARNESS]

    assert {"sweep", "gate", "doctor", "report", "publish"} == set(verbs)
    assert verbs.count("gate") >= 6
    with pytest.raises(Exception, match="No such option"):
        cli.commands["sweep"].make_context("sweep", ["--workloads", "resnet50"])


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a b \\\n  -c", [["a", "b", "-c"]]),
        ('x=$(date) | y "$(f g)" > z', [["x=WORD"], ["y", "WORD"], ["z"]]),
        ("{\n  a\n} >> b || c", [["a"], ["b"], ["c"]]),
        ("# a comment\na", [["a"]]),
    ],
)
def test_commands_are_split_as_a_shell_does(script, expected):
    """Continuations, substitutions, groups, redirections."""
    assert expected == commands_in(script)
