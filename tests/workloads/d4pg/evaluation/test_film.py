"""Films: what a reader of animated PNG sees."""

import io

import numpy as np
import pytest
from PIL import Image  # comes with matplotlib

from workloads.d4pg.evaluation import film


def test_every_frame_is_seen_as_it_was():
    """Though later ones hold what changed only, and colours have five bits."""
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.integers(0, 256, (1, 12, 16, 3)).astype(np.uint8), 4, axis=0)
    for index in range(1, 4):
        frames[index, :, 4 * index : 4 * index + 3] = rng.integers(0, 256, 3)
    picture = Image.open(io.BytesIO(film.encode(frames, frame_time_sec=0.25)))
    seen = []
    for index in range(picture.n_frames):
        picture.seek(index)
        seen.append(np.asarray(picture.convert("RGB")))

    np.testing.assert_array_equal(frames & 0xF8, np.stack(seen))
    assert 250 == picture.info["duration"]


def test_what_stands_still_takes_no_space():
    """Forty equal frames are little more than one."""
    rng = np.random.default_rng(0)
    frame = rng.integers(0, 256, (1, 40, 40, 3)).astype(np.uint8)
    one = len(film.encode(frame, frame_time_sec=0.1))

    assert len(film.encode(frame.repeat(40, axis=0), frame_time_sec=0.1)) < 2 * one


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((0, 4, 4, 3), np.uint8),
        np.zeros((4, 4, 3), np.uint8),
        np.zeros((1, 4, 4, 3), np.float32),
    ],
)
def test_what_is_no_film_is_refused(frames):
    with pytest.raises(ValueError, match=r"a film needs frames .* but got \("):
        film.encode(frames, frame_time_sec=0.1)
