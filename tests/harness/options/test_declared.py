"""An option is declared once: what follows from it, and what belongs to a name."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import Field

from harness.cli.verb import Verb
from harness.errors import ParseError, PlanError
from harness.options.kinds import kind_of
from harness.options.option import (
    NO_OPTIONS,
    Contributed,
    Option,
    Options,
    declared,
    keys_of,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class FastOptions(Options):
    hosts: Annotated[
        Annotated[int, Field(ge=1, le=9)] | None, Option(help="Hosts of the job.")
    ] = None
    queue: Annotated[str, Option(help="Of the engine.")] = "usual"


class SlowOptions(Options):
    """Of the engine ``slow``, which has one of these as well."""

    hosts: Annotated[
        Annotated[int, Field(ge=1, le=2)] | None, Option(help="Hosts of the job.")
    ] = None
    is_patient: Annotated[bool, Option(name="patient", help="Waits.")] = False


class TryRequest(Options):
    """All that can be declared."""

    name: Annotated[str, Option(is_argument=True)]
    count: Annotated[
        Annotated[int, Field(ge=1, le=5)], Option(group="Sizes", help="How `many`.")
    ] = 2
    colour: Annotated[Colour | None, Option(default="`red`", also=("-c",))] = None
    engine: Annotated[str, Option(help="The [engine](engine.md).")] = "none"
    of_engine: Annotated[
        Options,
        Contributed(
            by="engine",
            models=lambda: {"fast": FastOptions, "slow": SlowOptions},
            use=str,
        ),
    ] = NO_OPTIONS


def run(request, _call):
    click.echo(repr(request))
    return 0


VERB = Verb("try", "Tries.", __name__)


def called(*arguments):
    """Calls the verb; an error of ours is raised."""
    done = CliRunner().invoke(VERB, arguments, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def test_what_is_not_given_has_the_default_of_its_field():
    plain, given = called("x"), called("x", "--count=5", "-c", "blue")

    assert "TryRequest(name='x', count=2, colour=None, engine='none'," in plain
    assert "of_engine=Options()" in plain
    assert "count=5, colour=<Colour.BLUE: 'blue'>" in given


def test_the_help_has_groups_and_plain_text():
    """Those of an engine are below its name; one of two engines below both."""
    shown = " ".join(called("--help").split())

    assert "Sizes: --count N How many. [default: 2]" in shown
    assert "The engine. [default: none]" in shown
    assert "-c, --colour [red|blue] [default: red]" in shown
    assert "Options of --engine fast: --hosts N Hosts of the job. --queue" in shown
    assert "Options of --engine slow: --hosts N Hosts of the job. --patient" in shown


def test_options_of_an_engine_are_read_by_its_own_declaration():
    """Nine hosts of one, two of the other."""
    assert "of_engine=FastOptions(hosts=9, queue='usual')" in called(
        "x", "--engine=fast", "--hosts=9"
    )
    assert "SlowOptions(hosts=None, is_patient=True)" in called(
        "x", "--engine=slow", "--patient"
    )
    with pytest.raises(ParseError, match="--hosts: '9' is not an integer from 1 to 2"):
        called("x", "--engine=slow", "--hosts=9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--engine=slow", "--queue=a"],
            "--queue a has no effect with --engine slow; add --engine fast, or leave",
        ),
        (
            ["--hosts=1"],
            "--hosts 1 has no effect with --engine none; add --engine fast or --engine",
        ),
        (
            ["--patient"],
            "--patient has no effect with --engine none; add --engine slow",
        ),
    ],
)
def test_an_option_of_another_engine_is_refused(arguments, message):
    """It would have no effect."""
    with pytest.raises(PlanError, match=message):
        called("x", *arguments)


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, "-3", -3),
        (str, "a b", "a b"),
        (Path, "a/b", Path("a/b")),
        (Literal["a", "b"], "b", "b"),
        (Colour | None, "red", Colour.RED),
    ],
)
def test_a_kind_follows_from_the_type(annotation, text, value):
    """With its bounds."""
    assert value == kind_of(annotation).read(text, "--x")


@pytest.mark.parametrize(
    ("annotation", "text", "message"),
    [
        (int, "1.5", r"^--x: '1\.5' is not an integer$"),
        (Annotated[int, Field(ge=2)], "1", r"'1' is not an integer from 2 on"),
        (Annotated[int, Field(le=2)], "3", r"'3' is not an integer up to 2"),
        (int, "9" * 30, r"is not an integer"),
        (Literal["a", "b"], "c", r"'c' is not one of 'a', 'b'"),
    ],
)
def test_a_value_of_another_type_is_refused(annotation, text, message):
    with pytest.raises(ParseError, match=message):
        kind_of(annotation).read(text, "--x")


def test_a_type_without_a_kind_has_to_name_one():
    """A new kind of option is not guessed."""
    with pytest.raises(TypeError, match="is of no kind; name one in its Option"):
        kind_of(list[int])


def test_keys_of_study_files_are_the_options_and_those_of_each_engine():
    """Each once, and no argument."""
    keys = [*keys_of(TryRequest)]
    own = [option.name for option in declared(TryRequest)]

    assert ["name", "count", "colour", "engine"] == own
    assert ["count", "colour", "engine", "hosts", "queue", "patient"] == keys
