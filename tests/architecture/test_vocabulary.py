"""Identifiers use the words of ``docs/glossary.md`` and none of those it replaces."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("harness", "replicator", "reports", "results", "workloads")

# Word of an identifier -> what the glossary has in its place.
BANNED_WORDS = {
    "burn": "num_warmup_steps",
    "campaign": "sweep",
    "clone": "replica",
    "clones": "replicas",
    "comms": "collectives",
    "cost": "loss",
    "database": "store",
    "distributor": "replicator",
    "experiment": "sweep, study or trial",
    "experiments": "studies or trials",
    "fps": "examples_per_sec",
    "host": "worker or device",
    "iter": "step",
    "iteration": "step",
    "iterations": "steps",
    "iters": "num_measured_steps",
    "job": "trial",
    "latency": "step_time_sec or time_to_first_step_sec",
    "scalability": "efficiency",
    "shard": "replica, or the share of an input pipeline",
    "shards": "replicas, or the shares of input pipelines",
    "speed": "throughput",
    "task": "workload or worker",
    "tower": "replica",
    "towers": "replicas",
    "tps": "examples_per_sec",
}

# Last of several words -> what the glossary has in its place.
BANNED_UNITS = {
    "milliseconds": "a name that ends in _sec",
    "ms": "a name that ends in _sec",
    "pct": "a ratio from 0 to 1",
    "percent": "a ratio from 0 to 1",
    "secs": "a name that ends in _sec",
    "seconds": "a name that ends in _sec",
}

# Whole identifier -> what the glossary has in its place.
BANNED_NAMES = {
    "batch_size": "per_replica_batch_size or global_batch_size",
    "effective_batch_size": "global_batch_size",
    "local_batch_size": "per_replica_batch_size",
    "total_batch_size": "global_batch_size",
    "world_size": "num_replicas_in_sync",
}

# (file, identifier) -> why the word is right there.
ALLOWED = {
    ("harness/cli/progress.py", "_task"): "rich's word for a progress bar",
    ("replicator/_tf/compat.py", "meta_optimizer_iterations"): "TensorFlow's field",
    ("replicator/inputs/data_options.py", "auto_shard_policy"): "an option of tf.data",
    ("workloads/data/audit.py", "check_shards"): "shards as tf.data has them",
    ("workloads/data/audit.py", "shard"): "shards as tf.data has them",
    ("workloads/data/audit.py", "shards"): "shards as tf.data has them",
    ("workloads/data/pipeline.py", "shard"): "shards as tf.data has them",
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def defined_names(source: str) -> set[str]:
    """Returns the identifiers that a module makes up itself.

    Names of classes, functions, arguments, variables and attributes that are assigned;
    keywords of calls belong to the function that is called. Names with two underscores
    on both sides are Python's.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.alias) and node.asname:
            names.add(node.asname)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return {n for n in names if not (n.startswith("__") and n.endswith("__"))}


def complaint(name: str) -> str | None:
    """Says what an identifier should be called, or None if its words are fine."""
    plain = name.strip("_").lower()
    if plain in BANNED_NAMES:
        return BANNED_NAMES[plain]
    words = [word.lower() for word in _WORD.findall(name)]
    for word in words:
        if word in BANNED_WORDS:
            return BANNED_WORDS[word]
    # A single word is a quantity by itself (a writer of seconds), a flag has no unit.
    has_unit = len(words) > 1 and words[0] not in ("as", "has", "is")
    return BANNED_UNITS.get(words[-1]) if has_unit else None


def findings() -> dict[tuple[str, str], str]:
    """Returns file, identifier and the better name, for all banned identifiers."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in defined_names(path.read_text(encoding="utf-8")):
                better = complaint(name)
                if better is not None:
                    found[path.relative_to(ROOT).as_posix(), name] = better
    return found


def test_no_identifier_uses_a_replaced_word() -> None:
    """Every banned identifier has a reason in ALLOWED, or another name."""
    wrong = [
        f"{path}: {name!r}; the glossary has {better}"
        for (path, name), better in findings().items()
        if (path, name) not in ALLOWED
    ]

    assert wrong == []


def test_the_allow_list_has_no_stale_entry() -> None:
    """An exception that nothing needs any more is removed."""
    stale = sorted(set(ALLOWED) - set(findings()))

    assert stale == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def f(batch_size): pass", "batch_size"),
        ("self.batch_size = 8", "batch_size"),
        ("class TowerModel: pass", "TowerModel"),
        ("for world_size in []: pass", "world_size"),
        ("def f():\n  n_iters: int = 3", "n_iters"),
        ("step_time_ms = 1", "step_time_ms"),
        ("import numpy as fps", "fps"),
        ("try: pass\nexcept OSError as latency: pass", "latency"),
        ("async def run_job(): pass", "run_job"),
        ("lambda *iters: iters", "iters"),
    ],
)
def test_a_replaced_word_is_found_wherever_it_is_defined(
    source: str, name: str
) -> None:
    """The search sees every kind of definition."""
    banned = [n for n in defined_names(source) if complaint(n) is not None]

    assert banned == [name]


@pytest.mark.parametrize(
    "source",
    [
        "call(batch_size=8)",
        "other.world_size",
        "per_replica_batch_size = global_batch_size = 8",
        "def seconds(value, is_percent): pass",
        "items = terms = []",
        "def __iter__(self): pass",
    ],
)
def test_words_of_others_and_words_within_words_are_fine(source: str) -> None:
    """Keywords and attributes of other libraries are theirs."""
    banned = [n for n in defined_names(source) if complaint(n) is not None]

    assert banned == []


def test_the_glossary_names_what_is_banned() -> None:
    """The batch sizes and the replica count are in the document as well."""
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    missing = [
        word
        for word in ("batch_size", "world_size", "iters", "tower", "clone", "latency")
        if word not in glossary
    ]

    assert missing == []
