"""The metrics of D4PG: a new one is a new entry here; without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from workloads.spec import Metric

_Totals = Mapping[str, float]
"""Sums over the processes of a trial; see ``workloads/d4pg/window.py``."""


def _itself(returns: Sequence[float]) -> Sequence[float]:
    return returns


def _ratio(part: str, *wholes: str) -> Callable[[_Totals], float | None]:
    """Returns the function for a total over others; None where one of these is 0."""

    def of(totals: _Totals) -> float | None:
        value = totals[part]
        for whole in wholes:
            if not totals[whole]:
                return None
            value /= totals[whole]
        return value

    return of


def _of_actors(
    of: Callable[[_Totals], float | None],
) -> Callable[[_Totals], float | None]:
    """Returns the same, and None where there are no actors."""
    return lambda totals: of(totals) if totals["num_pipelines"] else None


def _of_window(
    name: str,
    unit: str,
    of: Callable[[_Totals], float | None],
    protocol: str,
    *,
    is_higher_better: bool | None,
) -> Metric:
    words = name.replace("_", " ").replace(" per sec", " per second")
    return Metric(
        name=name,
        title=words.capitalize(),
        unit=unit,
        protocol=f"{protocol}, over the measured window",
        is_higher_better=is_higher_better,
        is_of_window=True,
        of=of,
    )


LEARNED = (
    Metric(
        name="episode_return",
        title="Episode return",
        unit="return",
        protocol="mean of num_evaluation_episodes episodes without noise",
        is_higher_better=True,
        of=_itself,
    ),
)

OF_WINDOW = (
    _of_window(
        "learner_steps_per_sec",
        "learner steps/s",
        _ratio("num_learner_steps", "window_sec"),
        "learner steps of the trial",
        is_higher_better=True,
    ),
    _of_window(
        "transitions_per_sec",
        "transitions/s",
        _ratio("num_transitions", "window_sec"),
        "transitions of all learner steps",
        is_higher_better=True,
    ),
    _of_window(
        "clipped_target_share",
        "ratio",
        _ratio("clipped", "num_processes"),
        "probability of the targets outside the atoms, mean of the last steps",
        is_higher_better=False,
    ),
    _of_window(
        "environment_steps_per_sec",
        "environment steps/s",
        _of_actors(_ratio("num_environment_steps", "window_sec")),
        "environment steps of all actors",
        is_higher_better=True,
    ),
    _of_window(
        "learner_wait_share",
        "ratio",
        _ratio("wait_sec", "num_pipelines", "window_sec"),
        "time that sampling waited for actors",
        is_higher_better=False,
    ),
    _of_window(
        "finished_episodes",
        "episodes",
        _of_actors(_ratio("num_episodes")),
        "episodes that ended",
        is_higher_better=None,
    ),
    _of_window(
        "policy_lag",
        "learner steps",
        _of_actors(_ratio("policy_lag", "num_processes")),
        "learner steps that the weights of actors are behind, mean of the last steps",
        is_higher_better=False,
    ),
    _of_window(
        "refused_environment_steps",
        "environment steps",
        _of_actors(_ratio("num_refused")),
        "steps that were not finite",
        is_higher_better=False,
    ),
    _of_window(
        "replaced_actors",
        "actors",
        _of_actors(_ratio("num_restarts")),
        "actors that failed and were started again",
        is_higher_better=False,
    ),
    _of_window(
        "replay_ratio",
        "transitions/step",
        _of_actors(_ratio("num_sampled", "num_environment_steps")),
        "sampled transitions per environment step",
        is_higher_better=None,
    ),
    _of_window(
        "actor_idle_share",
        "ratio",
        _of_actors(_ratio("idle_sec", "elapsed_sec")),
        "time that actors waited for the learner",
        is_higher_better=False,
    ),
)

METRICS = LEARNED + OF_WINDOW
