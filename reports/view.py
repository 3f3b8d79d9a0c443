"""The data that sections read: the study, its figures, and the colours of backends."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from typing import TYPE_CHECKING

from results.figures import frame as frame_lib
from results.figures import lost_time, scaling
from results.records.models import Control, Order
from results.study.cases import load_study

if TYPE_CHECKING:
    import pandas as pd

    from results.figures.lost_time import Explained
    from results.figures.scaling import Comparison, Point
    from results.records.models import ScalingMode
    from results.store.study_store import Store
    from results.study.cases import Case, Study

NUM_SERIES = 10
"""Number of distinct colours and markers; the style sheet defines as many of each."""

SERIES_OF_BACKEND = {
    "in_graph": 0,
    "tf_mirrored": 1,
    "multi_worker": 2,
    "tf_multi_worker": 3,
    "multi_worker_in_graph": 4,
    "async": 5,
    "single": 6,
    "tf_parameter_server": 7,
    "dtensor": 8,
    "tpu": 9,
}
"""Colour and marker of each backend of the catalogue, the same in every study."""


def series_of(backend: str) -> int:
    """Returns the index of a backend's colour and marker, by its name only."""
    known = SERIES_OF_BACKEND.get(backend)
    # Not hash(): it differs from process to process.
    return zlib.crc32(backend.encode()) % NUM_SERIES if known is None else known


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """A study, prepared for display."""

    study: Study
    points: tuple[Point, ...]  # One per mode, backend and number of replicas.
    comparisons: tuple[Comparison, ...]  # Pairs of backends under equal conditions.
    losses: tuple[Explained, ...]  # Where the time of cases went.
    frame: pd.DataFrame  # ``results.figures.frame.points_frame``.
    store: Store

    @property
    def rate_unit(self) -> str:
        return f"{self.study.example_unit}/s"

    @property
    def is_program(self) -> bool:
        """Whether a program of the user's was measured by what it prints."""
        planned = self.study.planned
        return bool(planned) and planned[0].spec.has_readings

    @property
    def noun(self) -> str:
        return "backend" if self.study.program is None else "program"

    @property
    def measured_cases(self) -> tuple[Case, ...]:
        """Cases with at least one ok trial: backend by backend, replicas ascending."""
        backends = self.study.backends
        return tuple(
            sorted(
                (case for case in self.study.cases if case.ok_entries),
                key=lambda case: (
                    backends.index(case.spec.backend),
                    case.spec.num_replicas,
                    -case.spec.global_batch_size,
                ),
            )
        )

    @property
    def is_interleaved(self) -> bool:
        return self.study.plan.measuring.order is Order.INTERLEAVED

    @property
    def repetition(self) -> str:
        return "run" if self.is_interleaved else "repetition"

    @property
    def repetitions(self) -> str:
        return f"{self.repetition}s"

    @property
    def is_anything_measured(self) -> bool:
        return any(entry.is_measured for entry in self.study.planned)

    @property
    def has_ceiling(self) -> bool:
        return any(
            case.spec.control is Control.INDEPENDENT and case.ok_entries
            for case in self.study.controls
        )

    @property
    def oversubscribed_sizes(self) -> list[int]:
        return sorted({p.num_replicas for p in self.points if p.is_oversubscribed})

    def series(self, backend: str) -> int:
        return series_of(backend)

    def points_of(self, mode: ScalingMode, backend: str) -> tuple[Point, ...]:
        return tuple(
            point
            for point in self.points
            if point.mode is mode and point.backend == backend
        )

    @functools.cached_property
    def most_replicas(self) -> tuple[Point, ...]:
        """The most replicas of every backend and mode, in planned order."""
        chosen: list[Point] = []
        for mode in self.study.modes:
            for backend in self.study.backends:
                curve = [p for p in self.points_of(mode, backend) if p.throughput]
                fit = [p for p in curve if not p.is_oversubscribed] or curve
                chosen += [p for p in fit if p.num_replicas == fit[-1].num_replicas]
        return tuple(chosen)


def view_store(store: Store) -> View:
    """Reads the public facts of a store once; computes the data that sections share."""
    store = store.public
    study = load_study(store)
    points = scaling.points(study)
    comparisons = scaling.compare_backends(study)
    losses = lost_time.losses(study, points)
    return View(
        study=study,
        points=points,
        comparisons=comparisons,
        losses=losses,
        frame=frame_lib.frame_of(study, points, comparisons, losses),
        store=store,
    )
