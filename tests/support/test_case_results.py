"""Results of cases cross from the processes of a cluster whole, or not at all."""

import numpy as np
import pytest
from case_results import CaseResult, ResultFolder


def test_a_result_is_read_as_it_was_written(tmp_path):
    """Numbers to the last bit, and arrays within nests with their types."""
    value = {"loss": 0.1, "weights": [np.arange(3, dtype=np.uint8)], "none": None}
    folder = ResultFolder(tmp_path, 1)

    folder.write("a case", 0, CaseResult(value=value, error="E: x", duration_sec=2.5))

    found = folder.read("a case", 0)
    assert (0.1, None, "E: x", 2.5) == (
        found.value["loss"],
        found.value["none"],
        found.error,
        found.duration_sec,
    )
    np.testing.assert_array_equal(value["weights"][0], found.value["weights"][0])
    assert np.uint8 == found.value["weights"][0].dtype


def test_a_result_that_does_not_come_is_not_waited_for_without_end(tmp_path):
    """The error names the case."""
    folder = ResultFolder(tmp_path, 2)
    folder.write("case", 0, CaseResult(value=1))

    with pytest.raises(TimeoutError, match=r"not every process came out of case in"):
        folder.wait_for_all("case", 0.01)
    folder.write("case", 1, CaseResult(value=2))

    assert [1, 2] == [one.value for one in folder.wait_for_all("case", 0.01)]
