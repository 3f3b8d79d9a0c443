"""What metrics meant in studies that were kept before plans recorded it.

Only reading an older plan uses this table (``results/records/upgrade.py``). A metric of
today is declared in its workload, and its facts are in the plan.
"""

from __future__ import annotations

from typing import Any

_ALL = "the whole held-out split"
_IMAGES = "generated images against the training images"
_WINDOW = "over the measured window"
_TOLERANCE = 0.05

# Name: title, unit, whether more is better, how it was measured.
_LEARNED: dict[str, dict[str, tuple[str, str, bool, str]]] = {
    "resnet50": {
        "top_1": ("Top-1 accuracy", "ratio", True, _ALL),
        "top_5": ("Top-5 accuracy", "ratio", True, _ALL),
    },
    "sngan": {
        "fid": ("FID", "1", False, _IMAGES),
        "kid": ("KID", "1", False, _IMAGES),
        "inception_score": ("Inception Score", "1", True, "generated images"),
        "recognised": ("Recognised", "ratio", True, "generated images"),
    },
    "d4pg": {
        "episode_return": ("Episode return", "return", True, "episodes without noise"),
    },
}
# Name: unit, whether more is better.
_OF_WINDOW: dict[str, dict[str, tuple[str, bool | None]]] = {
    "d4pg": {
        "learner_steps_per_sec": ("learner steps/s", True),
        "transitions_per_sec": ("transitions/s", True),
        "clipped_target_share": ("ratio", False),
        "environment_steps_per_sec": ("environment steps/s", True),
        "learner_wait_share": ("ratio", False),
        "finished_episodes": ("episodes", None),
        "policy_lag": ("learner steps", False),
        "refused_environment_steps": ("environment steps", False),
        "replaced_actors": ("actors", False),
        "replay_ratio": ("transitions/step", None),
        "actor_idle_share": ("ratio", False),
    },
}


def of_workload(workload: object) -> list[dict[str, Any]]:
    """Returns the facts as a plan stores them; none of a workload that is unknown."""
    learned = _LEARNED.get(str(workload), {})
    found = [
        _facts(name, title, unit, is_higher_better, protocol)
        for name, (title, unit, is_higher_better, protocol) in learned.items()
    ]
    for name, (unit, is_higher_better) in _OF_WINDOW.get(str(workload), {}).items():
        title = name.replace("_", " ").replace(" per sec", " per second").capitalize()
        facts = _facts(name, title, unit, is_higher_better, _WINDOW)
        found.append({**facts, "is_of_window": True})
    return found


def _facts(
    name: str, title: str, unit: str, is_higher_better: bool | None, protocol: str
) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "unit": unit,
        "is_higher_better": is_higher_better,
        "tolerance": _TOLERANCE,
        "protocol": protocol,
    }
