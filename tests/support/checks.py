"""What cases of a cluster's processes check; a failure is one of the case."""

import json
import re

import numpy as np


def check(expected, found):
    assert expected == found, f"{found!r} in place of {expected!r}"


def check_message(pattern, call):
    """The call raises an error that says this."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 (its type is a part of the text)
        text = f"{type(error).__name__}: {error}"
    else:
        text = "no error"
    assert re.search(pattern, text, re.DOTALL), text


def check_messages(calls):
    """Each call, by pattern."""
    for pattern, call in calls.items():
        check_message(pattern, call)


def gathered(repl, value):
    """What all workers have, in their order."""
    return list(map(json.loads, repl.gather_bytes(json.dumps(value).encode())))


def check_close(expected, weights):
    """To the rounding of sums of float32 in another order."""
    for want, got in zip(expected, weights, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)
