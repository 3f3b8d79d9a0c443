"""Whether an error is the library's own: one that it raised to say what is wrong."""

import ast
import functools
import re
import traceback
from pathlib import Path

import replicator

FOLDER = str(Path(replicator.__file__).parent)
_LAST_LINE = re.compile(r"\n\n    \w+: ")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def complaint(error):
    """Says what is wrong with an error; None if the library raised it itself.

    An error of Python's that passes through the library (``'NoneType' object is not
    callable``) has its last frame there, too, but at a line that does not raise.
    """
    if not isinstance(error, (replicator.ReplicatorError, TypeError, ValueError)):
        return f"a {type(error).__name__} from {place_of(error)}"
    path, line = place_of(error)
    if not path.startswith(FOLDER):
        return f"raised in {path}:{line}"
    if not any(first <= line <= last for first, last in _raise_statements(path)):
        return f"passed through {Path(path).name}:{line}"
    if "\n" in message_of(error):
        return "a message of several lines"
    return None


def message_of(error):
    """What an error says; AutoGraph puts it behind the lines that lead there."""
    text = str(error)
    if "in user code:" not in text:
        return text
    return _LAST_LINE.split(text)[-1].strip()


def place_of(error):
    """File and line where an error comes from; AutoGraph hides it in the message."""
    frames = _FRAME.findall(str(error).partition("in user code:")[2])
    if frames:
        path, line = frames[-1]
        return path, int(line)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename, last.lineno or 0


@functools.cache
def _raise_statements(path):
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
    ]
