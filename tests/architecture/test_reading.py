"""Files that anybody may have made are read by one module."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READER = "results/store/untrusted.py"
KERNEL = "files of the kernel"
TRIAL = "what the harness has just written for this trial"
OURS = {
    "harness/cli/main.py": "opens the null device",
    "harness/client/scaling_client.py": "a file that is copied, and imports nothing",
    "harness/command/reader.py": "the numbers of a program, with messages of its own",
    "harness/command/peers.py": "environments of this tree, and records of a trial",
    "harness/command/identity.py": "files of the user's, for their digest",
    "harness/command/worker.py": TRIAL,
    "harness/conformance.py": "lines of a program, which it names",
    "harness/judging/revisions.py": "files of a checkout",
    "harness/launch/gang.py": TRIAL,
    "harness/machine/disturbance.py": KERNEL,
    "harness/machine/environment.py": KERNEL,
    "harness/machine/machine_state.py": KERNEL,
    "harness/machine/gpu_watch.py": "opens only to lock",
    "harness/machine/gpus.py": KERNEL,
    "harness/machine/owned_folders.py": "opens only to lock",
    "harness/sources/code_digest.py": "sources of this tree and of plugins",
    "harness/trial/measure.py": KERNEL,
    "harness/trial/ranks.py": TRIAL,
    "harness/trial/worker.py": TRIAL,
    "reports/page/page.py": "styles and scripts of this tree",
    "results/judging/paired_gate.py": "a table of this tree",
    "results/store/writing.py": "opens to sync and lock, the identity of this kernel,"
    " its own file",
}
OUTPUT = "the output of a program that this harness has started"
LINES = f"{TRIAL}; a line of a connection, whose reader drops what is none"
PARSED = {
    "harness/client/scaling_client.py": "a file that is copied, and imports nothing",
    "harness/command/reader.py": "the numbers of a program, with messages of its own",
    "harness/command/peers.py": TRIAL,
    "harness/judging/revisions.py": OUTPUT,
    "harness/launch/gang.py": LINES,
    "harness/launch/kubernetes.py": OUTPUT,
    "harness/launch/ray.py": OUTPUT,
    "harness/machine/environment.py": OUTPUT,
    "results/judging/paired_gate.py": "a table of this tree",
}
FOLDERS = ("results", "reports", "harness")


def _reads(tree):
    """Returns the lines that open a file to read it."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else ""
        owner = called.value if isinstance(called, ast.Attribute) else None
        if isinstance(called, ast.Name):
            name = called.id
        is_store = isinstance(owner, ast.Name) and owner.id in {"Store", "untrusted"}
        modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
        is_writing = any(isinstance(m, str) and set(m) & set("wxa") for m in modes)
        is_read = name in {"read_text", "read_bytes"}
        if not is_store and (is_read or (name == "open" and not is_writing)):
            found.append(node.lineno)
    return found


def _parses(tree):
    """Returns the lines that take a text for JSON."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"load", "loads"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "json"
    ]


def _guesses(tree):
    """Returns the lines that take a failed look at a path for the answer no."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"exists", "lexists", "isfile", "isdir", "islink"}
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "path"
    ]


def _places(find):
    """Returns what is found in the files of the packages."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted(paths)
        if (lines := find(ast.parse(path.read_text(encoding="utf-8"))))
    }


def test_files_of_others_are_read_by_one_module():
    """It tells absent, damaged and unavailable apart; nothing else may guess."""
    assert {READER, *OURS} == set(_places(_reads)), (
        "read it with results.store.untrusted"
    )


def test_json_of_others_is_parsed_by_one_module():
    """What is nested too deeply is no value, and no error of another kind."""
    assert {READER, *PARSED} == set(_places(_parses)), "parse it with untrusted.parsed"


def test_a_failed_look_is_no_answer():
    """What the file system does not say is neither there nor missing."""
    assert {} == _places(_guesses), "ask untrusted.is_there"
