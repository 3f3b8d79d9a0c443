"""The names of the stages of pipelines, by which the engine knows them."""

import re

FUNCTION_PREFIX = "replicator_stage"
TASK = re.compile(r"stage_\d+_[FB]\d+(?=/)")
"""What names of the operations of a task begin with, within a replica."""
END = "/replicator_end"
"""What the name of a node ends with that runs after all results of a task."""


def task_name(stage: int, task: object) -> str:
    """The name of a task in graphs and timelines, such as ``stage_0_F3``."""
    return f"stage_{stage}_{task}"
