"""The levels of ``sharded_update``, each with those before; without TensorFlow."""

from __future__ import annotations

STATE, GRADIENTS, PARAMETERS = "state", "gradients", "parameters"
LEVELS = (STATE, GRADIENTS, PARAMETERS)
