"""Every public function with every kind of argument works, or says what is wrong."""

import ast
import functools
import inspect
import re
import traceback
from pathlib import Path

import arguments
import pytest

import replicator

# Errors of what the user passed, when it is called: they must come through.
ERRORS_OF_USERS = {
    ("run(value)", "a Keras layer"),
    ("map_reduce(value, items)", "a Keras layer"),
    ("map_gather(items, value)", "a Keras layer"),
    ("audit_inputs(key_fn=value)", "a Keras layer"),
    ("make_input_iterator(value)", "a Keras layer"),
    ("audit_inputs(value)", "a Keras layer"),
}
# Every sixth kind of argument: neighbours are of one sort. ``make test`` takes the
# parts in turn; functions that share their checks follow each other.
NUM_PARTS = 6
PARTS = [list(arguments.KINDS)[first::NUM_PARTS] for first in range(NUM_PARTS)]
CALLS = [
    pytest.param(
        name,
        part,
        id=f"{name}-{part}",
        marks=[] if part == number % NUM_PARTS else pytest.mark.full,
    )
    for number, name in enumerate(arguments.NAMES)
    for part in range(NUM_PARTS)
]
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


def _answers(name, part, folder):
    found = {}
    for kind in PARTS[part]:
        make = arguments.KINDS[kind]
        repl = replicator.create("in_graph", num_replicas=2)
        place = folder / kind.replace(" ", "_").replace("'", "")
        try:
            arguments.call(name, repl, make(), str(place))
        except Exception as error:  # noqa: BLE001 - judged, whatever it is
            said = complaint(error)
            if said and (name, kind) not in ERRORS_OF_USERS:
                found[kind] = f"{said}: {error}"
    return found


@pytest.mark.parametrize(("name", "part"), CALLS)
def test_any_argument_is_taken_or_refused_by_the_library(
    name, part, tmp_path, monkeypatch
):
    """A ReplicatorError, TypeError or ValueError of its own, in one line."""
    monkeypatch.chdir(tmp_path)  # any string is a valid path

    found = _answers(name, part, tmp_path)
    replicator.set_determinism(None)

    assert not found, "\n".join(f"{kind}: {text}" for kind, text in found.items())


def test_every_public_function_is_called():
    # Results and contexts, which users do not make.
    made_by_the_library = {
        "CheckpointManager",
        "InputAudit",
        "InputIterator",
        "ReplicaContext",
        "ReplicatedOptimizer",
        "Replicator",
        "ReplicatorError",
        "RestoredCheckpoint",
    }
    # Enumerations, records, and what takes no argument.
    without_arguments = {
        "InputContext",
        "InputReplicationMode",
        "backend_names",
        "get_replica_context",
    }
    # ``create`` makes them.
    backends = {n for n in replicator.__all__ if n.endswith("Replicator")}
    backends -= {"StrategyReplicator"}
    text = inspect.getsource(arguments)
    asked = set(replicator.__all__) - made_by_the_library - without_arguments - backends

    assert set() == {name for name in asked if name not in text}

    methods = {
        name
        for name, member in inspect.getmembers(replicator.Replicator)
        if inspect.isfunction(member) and not name.startswith("_")
    }
    # Without arguments of users: they describe, check, and serve checkpoints.
    of_the_library = {
        "as_strategy",
        "assert_in_sync",
        "check_alive",
        "context",
        "counts",
        "explain",
        "summary",
        "gather_bytes",
        "local_state",
        "restored",
        "restore_local_state",
        "scope",
        "consolidated_state",
    }

    assert set() == {
        name for name in methods - of_the_library if f".{name}(" not in text
    }
