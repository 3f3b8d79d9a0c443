"""Which cases of a product, and which of a series, a run has."""

import itertools
import os
import random

# Set by ``make test-full``.
VARIABLE = "FULL_TESTS"


def is_full():
    """Whether this run has the whole of every product."""
    return bool(os.environ.get(VARIABLE))


def num_examples(few, many):
    """How many examples of a property are drawn."""
    return many if is_full() else few


def covering(cases, strength, prefer=None):
    """Chooses cases that have every combination of ``strength`` values that occurs."""
    of_case = [
        set(itertools.combinations(sorted(case.items()), min(strength, len(case))))
        for case in cases
    ]
    liked = [
        sum(case.get(name) in values for name, values in (prefer or {}).items())
        for case in cases
    ]
    left = set().union(*of_case) if of_case else set()
    chosen = []
    while left:
        best = max(
            range(len(cases)), key=lambda i: (len(of_case[i] & left), liked[i], -i)
        )
        chosen.append(best)
        left -= of_case[best]
    return sorted(chosen)


def leave_out(config, items):
    """Removes what is left to the full run from a collection; returns how many."""
    if is_full() or any("::" in str(arg) for arg in config.args):
        return 0
    left = left_for_the_full_run(items)
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(map(id, left))
        items[:] = [item for item in items if id(item) not in gone]
    return len(left)


def left_for_the_full_run(items):
    """The tests of a collection that ``make test`` leaves out."""
    left = [item for item in items if item.get_closest_marker("full")]
    products = {}
    for item in items:
        if item.get_closest_marker("covering") and item not in left:
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in products.values():
        mark = cases[0].get_closest_marker("covering").kwargs
        values = [
            {name: repr(value) for name, value in case.callspec.params.items()}
            for case in cases
        ]
        prefer = {
            name: set(map(repr, liked))
            for name, liked in mark.get("prefer", {}).items()
        }
        kept = set(covering(values, mark.get("strength", 1), prefer))
        left += [case for index, case in enumerate(cases) if index not in kept]
    return left


SEED = os.environ.get("FAULTS_SEED", "")


def chance(name):
    """Returns the numbers of a series, or of one of its cases."""
    return random.Random(f"{name} {SEED}" if SEED else str(name))


def series(test):
    """Lets a test that Hypothesis draws for follow the variable, too."""
    if not SEED:
        return test
    import hypothesis  # most processes that import this file draw no examples

    return hypothesis.seed(int(SEED))(test)
