"""The options of ``wrap_optimizer``, checked once, before anything is traced."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, NoReturn

from replicator.catalog import BACKENDS
from replicator.collectives import compression as compression_lib
from replicator.errors import OptimizerOptionError
from replicator.validation.arguments import is_one_of, shown
from replicator.validation.integers import INT32_MAX, is_integer

DYNAMIC = "dynamic"
# Option -> the capability of the catalogue that a backend needs for it.
_CAPABILITIES = {
    "accumulation_steps": "gradient_accumulation",
    "loss_scale": "dynamic_loss_scale",
    "sharded_update": "sharded_update",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerOptions:
    """What ``wrap_optimizer`` was asked to do besides averaging.

    Attributes:
      compression: ``bfloat16`` or ``float16``: gradients travel in 16 bits; see
        ``replicator.collectives.compression``.
      accumulation_steps: Calls of ``apply_gradients`` per update, whose gradients are
        averaged; see ``replicator.optimizer.accumulation``.
      global_clipnorm: Largest norm of all gradients together, after averaging.
      sharded_update: Whether each variable is updated, and its optimizer state kept, by
        one replica; see ``sharded_update.py``.
      loss_scale: Factor of the loss, or ``dynamic``; see ``loss_scale.py``.
    """

    compression: str | None = None
    accumulation_steps: int = 1
    global_clipnorm: float | None = None
    sharded_update: bool = False
    loss_scale: float | str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether gradients go straight from the reduction to the update."""
        return (
            self.accumulation_steps == 1
            and self.global_clipnorm is None
            and self.loss_scale is None
        )

    @property
    def needs_branch(self) -> bool:
        """Whether some calls do not update."""
        return self.accumulation_steps > 1 or self.loss_scale == DYNAMIC

    def check(self, optimizer: Any) -> OptimizerOptions:
        """Returns the options if they make sense for an optimizer.

        Raises:
          OptimizerOptionError: A wrong value, or one that the Keras optimizer has an
            own option for.
        """
        compression_lib.check(self.compression)
        steps = self.accumulation_steps
        if not is_integer(steps, least=1, most=INT32_MAX):
            raise OptimizerOptionError(
                f"accumulation_steps={shown(steps)} must be an integer of at least 1: "
                "the number of apply_gradients() calls whose average makes one update"
            )
        if self.global_clipnorm is not None and not _is_positive(self.global_clipnorm):
            raise OptimizerOptionError(
                f"global_clipnorm={shown(self.global_clipnorm)} must be a positive "
                "number, or None for no clipping"
            )
        if not isinstance(self.sharded_update, bool):
            raise OptimizerOptionError(
                f"sharded_update={shown(self.sharded_update)} must be True or False"
            )
        scale = self.loss_scale
        if not (scale is None or is_one_of(scale, (DYNAMIC,)) or _is_positive(scale)):
            raise OptimizerOptionError(
                f"loss_scale={shown(scale)} must be a positive number, 'dynamic', or "
                "None"
            )
        self._check_with(optimizer)
        return self

    def _check_with(self, optimizer: Any) -> None:
        """Refuses what both the wrapper and the Keras optimizer would do."""
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
        """Refuses options that a backend lacks, for the reason that its entry has.

        Args:
          backend: Name in the catalogue.
          label: What to call the backend in the message.
          refuses_fixed_loss_scale: Whether no loss scale works, not only a dynamic one.

        Raises:
          OptimizerOptionError: One of them was requested.
        """
        default = OptimizerOptions()
        for name, capability in _CAPABILITIES.items():
            reason = BACKENDS[backend].lacks.get(capability)
            value = getattr(self, name)
            if reason is None or value == getattr(default, name):
                continue
            is_fixed_scale = name == "loss_scale" and value != DYNAMIC
            if is_fixed_scale and not refuses_fixed_loss_scale:
                continue
            self.refuse_option(name, reason, label)

    def refuse_option(self, name: str, reason: str, label: str) -> NoReturn:
        """Raises the error of one option that does not work.

        Raises:
          OptimizerOptionError: Always.
        """
        raise OptimizerOptionError(
            f"{name}={getattr(self, name)!r} does not work under {label}: {reason}; "
            f"use {name}={getattr(OptimizerOptions(), name)!r}, or the in_graph backend"
        )


def _reject_conflict(
    optimizer: Any, attributes: tuple[str, ...], options: OptimizerOptions, name: str
) -> None:
    for attribute in attributes:
        value = getattr(optimizer, attribute, None)
        if value is not None:
            raise OptimizerOptionError(
                f"{name}={getattr(options, name)!r} was asked of wrap_optimizer, but "
                f"{type(optimizer).__name__} has {attribute}={value!r} itself, so it "
                "would be done twice; set only one of them"
            )


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max
