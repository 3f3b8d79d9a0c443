"""The base class of all records."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all records: frozen, closed, bounded."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
