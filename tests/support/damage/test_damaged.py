"""A series of damaged files is the same in every run, and damages."""

import random
import time

import hung
import pytest
from damaged import PLACES, damage

CONTENT = b'{"kind": "step", "index": 3, "loss": null}\n{"kind": "done", "ns": 1.5}\n'


def test_a_number_draws_the_same_damage(tmp_path):
    """In the place of the file, or within; nearly always something else."""
    found = []
    for _ in range(2):
        contents = []
        for number in range(150):
            path = tmp_path / "file"
            path.write_bytes(CONTENT)
            how = damage(path, random.Random(number))
            is_place = how in PLACES
            contents.append((how, None if is_place else path.read_bytes()))
            (path.rmdir if how == "directory" else path.unlink)(
                *([True] if how == "removed" else [])
            )
        found.append(contents)

    assert found[0] == found[1]
    assert set(PLACES) & {how for how, _ in found[0]}
    assert 10 > sum(content == CONTENT for _, content in found[0])


def test_what_waits_is_ended():
    """By no handler of errors."""
    with pytest.raises(hung.Hung, match=r"no end within 0.05 s"), hung.at_most(0.05):
        time.sleep(60)
