"""What a series draws: the same in each run, and others with ``FAULTS_SEED=NUMBER``.

So a series of thousands can be run in pieces, and a case is found again by its number.
"""

import os
import random

import hypothesis

SEED = os.environ.get("FAULTS_SEED", "")


def chance(name):
    """Returns the numbers of a series, or of one of its cases."""
    return random.Random(f"{name} {SEED}" if SEED else str(name))


def series(test):
    """Lets a test that Hypothesis draws for follow the variable, too."""
    return hypothesis.seed(int(SEED))(test) if SEED else test
