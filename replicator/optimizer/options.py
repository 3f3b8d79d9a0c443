"""The options of ``wrap_optimizer``, checked once, before anything is traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from replicator import catalog
from replicator.collectives.transport import check_compression
from replicator.core.validation import (
    INT32_MAX,
    format_value,
    is_integer,
    is_one_of,
    is_positive,
)
from replicator.errors import OptimizerOptionError

DYNAMIC = "dynamic"
# Options by which a Keras optimizer itself clips.
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")


class _Rule(NamedTuple):
    is_valid: Callable[[Any], bool]
    must: str  # What the message says of another value.
    # Attributes by which the Keras optimizer itself does the same.
    conflicts: tuple[str, ...] = ()
    capability: str = ""  # Of the catalogue, which a backend needs for it.


_RULES = {
    "accumulation_steps": _Rule(
        lambda steps: is_integer(steps, least=1, most=INT32_MAX),
        "must be an integer of at least 1 (the number of apply_gradients() calls per "
        "update)",
        ("gradient_accumulation_steps",),
        "gradient_accumulation",
    ),
    "global_clipnorm": _Rule(
        lambda limit: limit is None or is_positive(limit),
        "must be a positive number, or None for no clipping",
        CLIPS,
    ),
    "sharded_update": _Rule(
        lambda level: isinstance(level, bool) or is_one_of(level, catalog.LEVELS),
        "is not a level: use 'state' (or True), 'gradients' (and state), 'parameters' "
        "(and both), or False",
        capability="sharded_update",
    ),
    "loss_scale": _Rule(
        lambda by: by is None or is_one_of(by, (DYNAMIC,)) or is_positive(by),
        "must be a positive number, 'dynamic', or None",
        ("loss_scale_factor", "dynamic_scale", "inner_optimizer"),
        "dynamic_loss_scale",
    ),
}
_OF_LEVELS = {
    catalog.GRADIENTS: "sharded_gradients",
    catalog.PARAMETERS: "sharded_parameters",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerOptions:
    # ``bfloat16`` or ``float16``: gradients are sent in 16 bits; see
    # ``replicator.collectives.transport``.
    compression: str | None = None
    # Calls of ``apply_gradients`` per update, whose gradients are averaged; see
    # ``replicator.optimizer.stages``.
    accumulation_steps: int = 1
    # Upper limit of the global norm of the averaged gradients.
    global_clipnorm: float | None = None
    # What one replica keeps of each variable, for all: its optimizer ``state`` (or
    # True), the sum of its ``gradients`` as well, or its value too (``parameters``);
    # False for nothing. See ``stages.py``.
    sharded_update: bool | str = False
    # Factor of the loss, or ``dynamic``; see ``stages.py``.
    loss_scale: float | str | None = None

    @property
    def level(self) -> str | None:
        """What is sharded: the last of ``catalog.LEVELS`` that is; None for nothing."""
        if isinstance(self.sharded_update, bool):
            return catalog.STATE if self.sharded_update else None
        return self.sharded_update

    @property
    def shards_gradients(self) -> bool:
        """Whether only the owner of a variable keeps the sum of its gradients."""
        return self.level in (catalog.GRADIENTS, catalog.PARAMETERS)

    @property
    def needs_branch(self) -> bool:
        """Whether some calls do not update."""
        return self.accumulation_steps > 1 or self.loss_scale == DYNAMIC

    def is_set(self, name: str) -> bool:
        """Whether an option has another value than by default."""
        return bool(getattr(self, name) != getattr(OptimizerOptions(), name))

    def check(self, optimizer: Any) -> OptimizerOptions:
        check_compression(self.compression)
        for name, rule in _RULES.items():
            value = getattr(self, name)
            if not rule.is_valid(value):
                raise OptimizerOptionError(f"{name}={format_value(value)} {rule.must}")
        for name, rule in _RULES.items():
            for attribute in rule.conflicts if self.is_set(name) else ():
                value = getattr(optimizer, attribute, None)
                if value is not None:
                    raise OptimizerOptionError(
                        f"{name}={getattr(self, name)!r} was passed to wrap_optimizer, "
                        f"but {type(optimizer).__name__} itself has "
                        f"{attribute}={value!r}, so it would be applied twice; set "
                        "only one of them"
                    )
        return self

    def refuse(self, backend: str, label: str) -> None:
        """Rejects options that a backend lacks, for the reason that its entry has."""
        info = catalog.BACKENDS[backend]
        needs = [(name, rule.capability) for name, rule in _RULES.items()]
        needs.append(("sharded_update", _OF_LEVELS.get(self.level or "", "")))
        needs.append(("compression", "gradient_compression"))
        for name, capability in needs:
            reason = info.lacks.get(capability)
            is_fixed_scale = name == "loss_scale" and self.loss_scale != DYNAMIC
            is_allowed = is_fixed_scale and info.processes != catalog.PARAMETER_SERVERS
            if reason is not None and self.is_set(name) and not is_allowed:
                self.refuse_option(name, reason, label)

    def refuse_over_workers(self, label: str) -> None:
        """Rejects what a sharded update over worker processes cannot do."""
        if self.needs_branch and not self.shards_gradients:
            reason = (
                "one worker computes an update in a branch for all, unless gradients "
                "are sharded too (sharded_update='gradients')"
            )
            self.refuse_option("sharded_update", reason, label)
        if self.accumulation_steps > 1 and self.global_clipnorm is not None:
            reason = "no worker has all of the sums whose norm limits the update"
            self.refuse_option("global_clipnorm", reason, label)

    def refuse_option(
        self, name: str, reason: str, label: str, instead: str = ""
    ) -> NoReturn:
        default = getattr(OptimizerOptions(), name)
        use = (
            f"{name}={instead!r}"
            if instead
            else f"{name}={default!r}, or the in_graph backend"
        )
        raise OptimizerOptionError(
            f"{name}={getattr(self, name)!r} does not work with {label}: {reason}; "
            f"use {use}"
        )
