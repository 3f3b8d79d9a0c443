"""The launchers by name, as data: nothing of an engine is imported to list them."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, cast

from harness.lookup import look_up

if TYPE_CHECKING:
    from harness.launch.contract import Launcher

DEFAULT = "local"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LauncherInfo:
    """One launcher.

    Attributes:
      name: For ``--launcher``.
      factory: ``module:name`` of the class, or of a function that returns a launcher;
        called without arguments where trials are to be started.
      summary: One line.
    """

    name: str
    factory: str
    summary: str


LAUNCHERS: dict[str, LauncherInfo] = {
    info.name: info
    for info in (
        LauncherInfo(
            name="local",
            factory="harness.launch.local:LocalLauncher",
            summary="processes of this machine",
        ),
        LauncherInfo(
            name="slurm",
            factory="harness.launch.slurm.srun:from_environment",
            summary="steps of srun in an allocation; submits a job outside of one",
        ),
        LauncherInfo(
            name="ray",
            factory="harness.launch.ray_launcher:RayLauncher",
            summary="the hosts of a Ray cluster, for machines without a scheduler",
        ),
    )
}


def info(name: str) -> LauncherInfo:
    """Returns the facts of a launcher.

    Raises:
      PlanError: The name is unknown; the message lists the known ones.
    """
    return look_up(LAUNCHERS, name, what="launcher")


def make(name: str) -> Launcher:
    """Returns a launcher by name.

    Raises:
      PlanError: The name is unknown, or its engine is not here.
    """
    module, _, factory = info(name).factory.partition(":")
    return cast("Launcher", getattr(importlib.import_module(module), factory)())
