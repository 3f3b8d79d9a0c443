"""Tells processes that tests start the fingerprints of the code, which take 0.5 s."""

import functools
import json
import os

from harness.sources import code_digest

VARIABLE = "TESTS_KNOW_FINGERPRINTS"


@functools.cache
def variables():
    """Returns the environment variable for such a process."""
    root = str(code_digest.SOURCE_ROOT)
    code_digest.read_once(code_digest.SOURCE_ROOT)
    known = code_digest._known.items()
    found = {p.removeprefix(root): of for p, of in known if p.startswith(root)}
    return {VARIABLE: json.dumps(found)}


def use():
    """Takes the fingerprints from the variable, in the process that was started."""
    for name, (time, size, fingerprint) in json.loads(
        os.environ.get(VARIABLE, "{}")
    ).items():
        code_digest._known[f"{code_digest.SOURCE_ROOT}{name}"] = time, size, fingerprint
