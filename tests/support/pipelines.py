"""The pipelines of this project, and the commands in their scripts."""

import re
import shlex
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
GITLAB = ROOT / "docs" / "gitlab" / "pipeline.yml"
PIPELINES = [*WORKFLOWS, GITLAB]

_OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "(", ")", "{", "}", ";;"}
_SUBSTITUTION = re.compile(r"\$\([^()]*\)")


def read(path):
    """Returns a pipeline; ``on`` is a key, not a truth value."""
    return parsed(path.read_text(encoding="utf-8"))


def parsed(text):
    """Returns YAML with all scalars as strings."""
    return yaml.load(text, Loader=yaml.BaseLoader)


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
