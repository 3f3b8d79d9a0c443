"""Creates a replay from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.d4pg.replay.prioritized import PrioritizedReplay
from workloads.d4pg.replay.uniform import UniformReplay

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.d4pg.replay.replay import Replay, ReplaySettings
    from workloads.d4pg.replay.streams import StepStreams


def make_replay(
    streams: StepStreams,
    settings: ReplaySettings,
    on_wait: Callable[[], None] | None = None,
) -> Replay:
    """Returns the replay for the settings, over ``streams``."""
    kind = PrioritizedReplay if settings.is_prioritized else UniformReplay
    return kind(streams, settings, on_wait)
