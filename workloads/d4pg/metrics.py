"""The metrics of D4PG: a new one is a new entry here; without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workloads.spec import Metric

_Totals = Mapping[str, float]  # sums over the processes of a trial; see ``program.py``
# Those that there are without actors.
_OF_LEARNER = ("num_learner_steps", "num_transitions", "clipped")


def _itself(returns: Sequence[float]) -> Sequence[float]:
    return returns


def _of_window(
    name: str,
    unit: str,
    ratio: str,
    protocol: str,
    *,
    is_higher_better: bool | None,
) -> Metric:
    """A total over others, ``a / b``; none where one of these is 0, or no actor is."""
    part, *wholes = ratio.split(" / ")

    def of(totals: _Totals) -> float | None:
        if part not in _OF_LEARNER and not totals["num_pipelines"]:
            return None
        value = totals[part]
        for whole in wholes:
            if not totals[whole]:
                return None
            value /= totals[whole]
        return value

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
        "num_learner_steps / window_sec",
        "learner steps of the trial",
        is_higher_better=True,
    ),
    _of_window(
        "transitions_per_sec",
        "transitions/s",
        "num_transitions / window_sec",
        "transitions of all learner steps",
        is_higher_better=True,
    ),
    _of_window(
        "clipped_target_share",
        "ratio",
        "clipped / num_processes",
        "probability of the targets outside the atoms, mean of the last steps",
        is_higher_better=False,
    ),
    _of_window(
        "environment_steps_per_sec",
        "environment steps/s",
        "num_environment_steps / window_sec",
        "environment steps of all actors",
        is_higher_better=True,
    ),
    _of_window(
        "learner_wait_share",
        "ratio",
        "wait_sec / num_pipelines / window_sec",
        "time that sampling waited for actors",
        is_higher_better=False,
    ),
    _of_window(
        "finished_episodes",
        "episodes",
        "num_episodes",
        "episodes that ended",
        is_higher_better=None,
    ),
    _of_window(
        "policy_lag",
        "learner steps",
        "policy_lag / num_processes",
        "learner steps that the weights of actors are behind, mean of the last steps",
        is_higher_better=False,
    ),
    _of_window(
        "refused_environment_steps",
        "environment steps",
        "num_refused",
        "steps that were not finite",
        is_higher_better=False,
    ),
    _of_window(
        "replaced_actors",
        "actors",
        "num_restarts",
        "actors that failed and were started again",
        is_higher_better=False,
    ),
    _of_window(
        "replay_ratio",
        "transitions/step",
        "num_sampled / num_environment_steps",
        "sampled transitions per environment step",
        is_higher_better=None,
    ),
    _of_window(
        "actor_idle_share",
        "ratio",
        "idle_sec / elapsed_sec",
        "time that actors waited for the learner",
        is_higher_better=False,
    ),
)

METRICS = LEARNED + OF_WINDOW
