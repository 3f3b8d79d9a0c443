"""Words of a page: what a backend is, and what is longer or shorter."""

import math

from hypothesis import given
from hypothesis import strategies as st

from harness.catalog import BACKENDS, PEERS
from reports.words import formats, names
from results.statistics.estimates import Estimate


def test_every_backend_of_the_catalogue_is_described():
    """None is said to be a stranger's."""
    unknown = names.backend("nobody's")

    assert [] == [of for of in (*BACKENDS, *PEERS) if names.backend(of) == unknown]


@given(log=st.floats(-1, 1), below=st.floats(0, 0.5), above=st.floats(0, 0.5))
def test_a_direction_in_words_has_no_sign_of_its_own(log, below, above):
    """The ends of the interval are in order, and the value is among them."""
    low, high = math.exp(log - below), math.exp(log + above)
    found = formats.longer(
        Estimate(value=math.exp(log), low=low, high=high, n=5, unit="", method="")
    )
    figures, _, word = found.rpartition(" ")
    value, _, ends = figures.partition(" ")
    first, last = (float(of) for of in ends.strip("[]").split(","))

    assert word == ("shorter" if math.exp(log) < 1 else "longer")
    assert 0 <= first <= last or first <= 0 <= last
    assert first <= float(value.split(formats.THIN_SPACE)[0]) <= last
