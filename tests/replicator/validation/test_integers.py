"""What counts as an integer where a user gives a number."""

import numpy as np
import pytest

from replicator.validation.integers import is_integer


@pytest.mark.parametrize("value", [True, 1.0, "1", None, np.int64(1), [1]])
def test_what_only_looks_like_an_integer_is_none(value):
    """Neither flags nor numbers of other types."""
    assert not is_integer(value)


def test_a_bound_is_allowed_itself():
    """At least means from there on."""
    assert is_integer(-3)
    assert is_integer(1, least=1)
    assert is_integer(2, most=2)
    assert not is_integer(3, most=2)
    assert not is_integer(0, least=1)
