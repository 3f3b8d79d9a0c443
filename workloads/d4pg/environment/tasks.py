"""Which environments of the DeepMind Control Suite exist, by name.

The planner imports this module, so it does not import dm_control.
"""

from __future__ import annotations

import difflib

_MOST_SUGGESTIONS = 3

_BY_DOMAIN = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": (
        "balance",
        "balance_sparse",
        "swingup",
        "swingup_sparse",
        "two_poles",
        "three_poles",
    ),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}

TASKS = tuple(
    f"{domain}:{name}" for domain, names in _BY_DOMAIN.items() for name in names
)
"""Every ``domain:task`` of the suite."""


def check(name: str) -> None:
    """Raises unless ``name`` is a ``domain:task`` of the control suite."""
    if name in TASKS:
        return
    domain, colon, _ = name.partition(":")
    if not colon:
        allowed = "a domain and a task of the control suite with a colon between them"
        raise ValueError(f"data {name!r} must be {allowed}{_suggestion(name)}")
    if domain in _BY_DOMAIN:
        allowed = ", ".join(repr(f"{domain}:{known}") for known in _BY_DOMAIN[domain])
        raise ValueError(
            f"data {name!r} is unknown: {domain!r} has the tasks {allowed}"
            f"{_suggestion(name)}"
        )
    domains = ", ".join(map(repr, _BY_DOMAIN))
    raise ValueError(
        f"data {name!r} is unknown: the domains of the control suite are {domains}"
        f"{_suggestion(name)}"
    )


def _suggestion(name: str) -> str:
    # 'cartpole' and 'cartpole-swingup' are near to names that have a colon.
    close = difflib.get_close_matches(
        name.replace("-", ":").replace("/", ":"), TASKS, n=_MOST_SUGGESTIONS, cutoff=0.5
    )
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
