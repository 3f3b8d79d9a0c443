"""Imports every module of cases, so that all of them are registered."""

from conformance_cases import (  # noqa: F401 - imported for its cases
    collectives,
    derivatives,
    inputs,
    misuse,
    optimizer_options,
    state,
    training,
)
from conformance_cases.registry import CASES

__all__ = ("CASES",)
