"""The data that sections read: the study, its figures, and the colours of backends."""

from __future__ import annotations

import dataclasses
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
    "tpu": 9,
}
"""Colour and marker of each backend of the catalogue, the same in every study."""


def series_of(backend: str) -> int:
    """Returns the index of a backend's colour and marker; it depends on the name only.

    A backend outside the catalogue shares those of another one.
    """
    known = SERIES_OF_BACKEND.get(backend)
    # Not hash(): it differs from process to process.
    return zlib.crc32(backend.encode()) % NUM_SERIES if known is None else known


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A study, prepared for display."""

    study: Study
    points: tuple[Point, ...]  # One per mode, backend and number of replicas.
    comparisons: tuple[Comparison, ...]  # Pairs of backends under equal conditions.
    explained: tuple[Explained, ...]  # Cases with controls: where their time went.
    frame: pd.DataFrame  # ``results.figures.frame.points_frame``.
    recorded: tuple[Explained, ...]  # The others, by what their turns record.
    store: Store

    @property
    def rate_unit(self) -> str:
        """Unit of throughput, such as images/s."""
        return f"{self.study.example_unit}/s"

    @property
    def is_program(self) -> bool:
        """Whether a program of the user's was measured by what it prints."""
        planned = self.study.planned
        return bool(planned) and planned[0].spec.has_readings

    @property
    def noun(self) -> str:
        """What a curve is of: a backend, or a program of the user's."""
        return "backend" if self.study.program is None else "program"

    @property
    def measured_cases(self) -> tuple[Case, ...]:
        """Cases with at least one ok trial: backend by backend, replicas ascending."""
        backends = self.study.backends
        cases = [case for case in self.study.cases if case.ok_entries]
        return tuple(
            sorted(
                cases,
                key=lambda case: (
                    backends.index(case.spec.backend),
                    case.spec.num_replicas,
                    -case.spec.global_batch_size,
                ),
            )
        )

    @property
    def repetition(self) -> str:
        """What a repetition is called: a relay has generations."""
        is_relay = self.study.plan.measuring.order is Order.RELAY
        return "run" if is_relay else "repetition"

    @property
    def repetitions(self) -> str:
        """The plural of ``repetition``."""
        return f"{self.repetition}s"

    @property
    def is_anything_measured(self) -> bool:
        """Whether at least one planned trial has numbers."""
        return any(entry.is_measured for entry in self.study.planned)

    @property
    def has_several_baselines(self) -> bool:
        """Whether a fastest baseline can be another than a backend's own."""
        return any(point.efficiency_of_best is not None for point in self.points) and (
            len({point.backend for point in self.points}) > 1
        )

    @property
    def has_ceiling(self) -> bool:
        """Whether programs that never communicate were measured."""
        return any(
            case.spec.control is Control.SOLO and case.ok_entries
            for case in self.study.controls
        )

    @property
    def is_oversubscription_present(self) -> bool:
        """Whether any case ran with more replicas than cores."""
        return any(point.is_oversubscribed for point in self.points)

    def series(self, backend: str) -> int:
        """Returns the index of a backend's colour and marker."""
        return series_of(backend)

    def points_of(self, mode: ScalingMode, backend: str) -> tuple[Point, ...]:
        """Returns one curve, replicas ascending."""
        return tuple(
            point
            for point in self.points
            if point.mode is mode and point.backend == backend
        )


def modes_text(modes: tuple[ScalingMode, ...]) -> str:
    """Returns the names of scaling modes."""
    return " and ".join(mode.value for mode in modes) or "not planned"


def view_store(store: Store) -> View:
    """Reads the public facts of a store once; computes the data that sections share."""
    store = store.public
    study = load_study(store)
    measured = scaling.points(study)
    compared = scaling.compare_backends(study)
    explained = lost_time.explain(study)
    recorded = lost_time.recorded_losses(measured, explained)
    return View(
        study=study,
        points=measured,
        comparisons=compared,
        explained=explained,
        frame=frame_lib.frame_of(study, measured, compared, (*explained, *recorded)),
        recorded=recorded,
        store=store,
    )
