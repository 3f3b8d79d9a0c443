"""The options of ``wrap_optimizer``, checked once, before anything is traced."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NoReturn

from replicator.catalog import BACKENDS, GRADIENTS, LEVELS, PARAMETERS, STATE
from replicator.collectives import differentiable
from replicator.core.validation import (
    INT32_MAX,
    format_value,
    is_integer,
    is_one_of,
    is_positive,
)
from replicator.errors import OptimizerOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

DYNAMIC = "dynamic"
# Option -> the capability of the catalogue that a backend needs for it.
_CAPABILITIES = {
    "accumulation_steps": "gradient_accumulation",
    "loss_scale": "dynamic_loss_scale",
    "sharded_update": "sharded_update",
}
# And for a level of it.
_OF_LEVELS = {GRADIENTS: "sharded_gradients", PARAMETERS: "sharded_parameters"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerOptions:
    """The options of ``wrap_optimizer``."""

    # ``bfloat16`` or ``float16``: gradients are sent in 16 bits; see
    # ``replicator.collectives.differentiable``.
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
    def is_plain(self) -> bool:
        """Whether gradients go directly from the reduction to the update."""
        return (
            self.accumulation_steps == 1
            and self.global_clipnorm is None
            and self.loss_scale is None
        )

    @property
    def level(self) -> str | None:
        """What is sharded: the last of ``LEVELS`` that is; None for nothing."""
        if isinstance(self.sharded_update, bool):
            return STATE if self.sharded_update else None
        return self.sharded_update

    @property
    def shards_gradients(self) -> bool:
        """Whether only the owner of a variable keeps the sum of its gradients."""
        return self.level in (GRADIENTS, PARAMETERS)

    @property
    def needs_branch(self) -> bool:
        """Whether some calls do not update."""
        return self.accumulation_steps > 1 or self.loss_scale == DYNAMIC

    def check(self, optimizer: Any) -> OptimizerOptions:
        """Returns the options if they are valid for an optimizer."""
        differentiable.check_compression(self.compression)
        steps = self.accumulation_steps
        if not is_integer(steps, least=1, most=INT32_MAX):
            raise OptimizerOptionError(
                f"accumulation_steps={format_value(steps)} must be an integer of at "
                "least 1 (the number of apply_gradients() calls per update)"
            )
        if self.global_clipnorm is not None and not is_positive(self.global_clipnorm):
            raise OptimizerOptionError(
                f"global_clipnorm={format_value(self.global_clipnorm)} must be a "
                "positive number, or None for no clipping"
            )
        sharded = self.sharded_update
        if not (isinstance(sharded, bool) or is_one_of(sharded, LEVELS)):
            raise OptimizerOptionError(
                f"sharded_update={format_value(sharded)} is not a level: use 'state' "
                "(or True), 'gradients' (and state), 'parameters' (and both), or False"
            )
        scale = self.loss_scale
        if not (scale is None or is_one_of(scale, (DYNAMIC,)) or is_positive(scale)):
            raise OptimizerOptionError(
                f"loss_scale={format_value(scale)} must be a positive number, "
                "'dynamic', or None"
            )
        self._check_with(optimizer)
        return self

    def _check_with(self, optimizer: Any) -> None:
        """Rejects options that the Keras optimizer has set as well."""
        if self.accumulation_steps > 1:
            _reject_conflict(
                optimizer, ("gradient_accumulation_steps",), self, "accumulation_steps"
            )
        if self.global_clipnorm is not None:
            clips = ("clipnorm", "clipvalue", "global_clipnorm")
            _reject_conflict(optimizer, clips, self, "global_clipnorm")
        if self.loss_scale is not None:
            scales = ("loss_scale_factor", "dynamic_scale", "inner_optimizer")
            _reject_conflict(optimizer, scales, self, "loss_scale")

    def refuse(
        self, backend: str, label: str, *, refuses_fixed_loss_scale: bool = False
    ) -> None:
        """Rejects options that a backend lacks, for the reason that its entry has."""
        default = OptimizerOptions()
        for name, capability in self._needs():
            reason = BACKENDS[backend].lacks.get(capability)
            value = getattr(self, name)
            if reason is None or value == getattr(default, name):
                continue
            is_fixed_scale = name == "loss_scale" and value != DYNAMIC
            if is_fixed_scale and not refuses_fixed_loss_scale:
                continue
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

    def refuse_branch(self, optimizer: Any) -> NoReturn:
        """Rejects an optimizer that cannot skip the update of one owner by itself."""
        raise OptimizerOptionError(
            f"sharded_update={self.sharded_update!r} with updates that are skipped "
            "(accumulation_steps, loss_scale='dynamic') needs an update by kernels "
            "(keras.optimizers.SGD or Adam without options such as weight_decay), "
            f"which {type(optimizer).__name__} here has not; use "
            "sharded_update='state', or update in every call"
        )

    def _needs(self) -> Iterator[tuple[str, str]]:
        """Options, with the capabilities that a backend needs for them."""
        yield from _CAPABILITIES.items()
        if isinstance(self.level, str) and self.level in _OF_LEVELS:
            yield "sharded_update", _OF_LEVELS[self.level]

    def refuse_option(
        self, name: str, reason: str, label: str, instead: str = ""
    ) -> NoReturn:
        """Raises the error of one option that does not work."""
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


def _reject_conflict(
    optimizer: Any, attributes: tuple[str, ...], options: OptimizerOptions, name: str
) -> None:
    for attribute in attributes:
        value = getattr(optimizer, attribute, None)
        if value is not None:
            raise OptimizerOptionError(
                f"{name}={getattr(options, name)!r} was passed to wrap_optimizer, but "
                f"{type(optimizer).__name__} itself has {attribute}={value!r}, so it "
                "would be applied twice; set only one of them"
            )
