"""Names that the harness and the programs of peers share; imports nothing."""

from __future__ import annotations

from typing import Final

EXPORT_VARIABLE: Final = "REPLICATOR_HARNESS_EXPORT"
"""Environment variable with the folder of what a trial of a peer begins with."""
EXPORT_SETTINGS: Final = "settings.json"
"""Its file with settings and losses."""
