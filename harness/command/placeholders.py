"""A command with placeholders, such as ``torchrun --nproc-per-node {replicas} a.py``.

The command is split into words as a shell does it, and then started without a shell, so
that a value can never be more than one word.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from harness.errors import PlanError
from harness.lookup import look_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MEANINGS: Final = {
    "replicas": "replicas of the trial",
    "per_replica_batch_size": "examples per replica and step",
    "global_batch_size": "examples of all replicas per step",
    "workers": "worker processes: replicas / replicas_per_worker",
    "replicas_per_worker": "replicas of each of them",
    "cores": "logical CPUs of the trial, to which it is pinned",
    "gpus": "GPUs that it sees; 0 with --device cpu",
    "port": "a free TCP port of this machine",
    "seed": "the same for all cases of a repetition",
    "output_dir": "an empty folder, which is removed when the trial ends",
}
"""All placeholders."""
_OF_SIZE: Final = frozenset({"replicas", "workers", "cores", "gpus"})
"""Those of which one must be there, so that a case differs from another."""
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_OF_SHELL = re.compile(
    r"^\s*[A-Za-z_]\w*=|(?<!\S)~(?=[/\s]|$)|[;<>|&`\n]|\$[A-Za-z0-9_({?@*]"
)
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")


def split(command: str) -> tuple[str, ...]:
    """Returns the words of a command, placeholders as they are."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise PlanError(
            f"--command {command!r} cannot be split into words: {error}; close the"
            " quotation marks"
        ) from error
    if not words:
        raise PlanError(
            "--command is empty; give what starts your program, such as 'python"
            " train.py --replicas {replicas}'"
        )
    return words


def names_in(command: str) -> tuple[str, ...]:
    """Returns the placeholders of a command, each once."""
    found = [match["name"] for match in _PLACEHOLDER.finditer(command) if match["name"]]
    for name in found:
        look_up(MEANINGS, name, what="placeholder of --command (write braces twice)")
    return tuple(dict.fromkeys(found))


def check(command: str, replicas: Iterable[int]) -> None:
    """Checks that a command can be started, and differs between numbers of replicas."""
    split(command)
    found = _OF_SHELL.search(_QUOTED.sub("_", command))
    if found is not None:
        raise PlanError(
            f"--command {command!r} has {found[0].strip()!r}, which only a shell"
            " understands, and none is started; write sh -c '...' around it, env"
            " NAME=VALUE for a variable, or quotation marks where it is text"
        )
    counts = sorted(set(replicas))
    if len(counts) > 1 and not _OF_SIZE.intersection(names_in(command)):
        raise PlanError(
            f"--command {command!r} has no {{replicas}}, so it would be the same"
            f" program with {counts[0]} and {counts[-1]} replicas; write {{replicas}}"
            " (or {workers}, {cores}, {gpus}) where it says how many there are, or"
            f" use --replicas {counts[0]}"
        )


def fill(command: str, values: Mapping[str, object]) -> list[str]:
    """Returns the words of a command with values in place of the placeholders."""
    return fill_words(split(command), values)


def fill_words(words: Iterable[str], values: Mapping[str, object]) -> list[str]:
    """Returns words with values in place of the placeholders."""

    def value_of(match: re.Match[str]) -> str:
        name = match["name"]
        return match[0][0] if name is None else str(values[name])

    return [_PLACEHOLDER.sub(value_of, word) for word in words]
