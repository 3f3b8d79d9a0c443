"""Records of what the first steps of a trial changed, to match N replicas with one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from results.records.bounds import Name, Real
from results.records.record_base import Record

MAX_CHANGES = 10_000
MAX_SKETCH = 4_096


class Change(Record):
    """A sketch of what training changed in a model or in an optimizer's state.

    Sketches of two trials with the same variables can be compared: the length of their
    difference estimates that of the difference of all elements.
    """

    group: Literal["model", "optimizer"]
    name: Name
    sketch: Annotated[tuple[Real, ...], Field(min_length=1, max_length=MAX_SKETCH)]


Changes = Annotated[tuple[Change, ...], Field(max_length=MAX_CHANGES)]
