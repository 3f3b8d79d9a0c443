"""Studies of sites: two that can be compared, and one of another machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from results.store.study_store import Store


@pytest.fixture(scope="session")
def make_study(tmp_path_factory: Any, synthetic: Any) -> Any:
    """Returns a function that makes a study, and changes its environment records."""

    def make(name: str, *, day: int = 1, env: Any = None, **fields: Any) -> Store:
        defaults = {"noise": 0.004, "is_evaluated": False, "repeats": 4, "name": name}
        root: Path = tmp_path_factory.mktemp("study") / "folder"
        store: Store = synthetic.make_store(
            root, synthetic.Shape(**(defaults | fields))
        )
        plan = json.loads((root / "plan.json").read_text())
        plan["created_at"] = f"2026-01-{day:02}T00:00:00+00:00"
        (root / "plan.json").write_text(json.dumps(plan))
        for path in root.glob("trials/*/status.json"):
            status = json.loads(path.read_text())
            status["started_at"] = f"2026-01-{day:02}T12:00:00+00:00"
            path.write_text(json.dumps(status))
        for path in root.glob("trials/*/env.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | (env or {})))
        return store

    return make


@pytest.fixture(scope="session")
def slow_down() -> Any:
    """Returns a function that makes every trial of a study slower by a factor."""

    def change(store: Store, factor: float, backend: str = "") -> Store:
        for path in store.root.glob("trials/*/result.json"):
            spec = json.loads((path.parent / "spec.json").read_text())
            if backend in ("", spec["backend"]):
                result = json.loads(path.read_text())
                result["window_sec"] *= factor
                path.write_text(json.dumps(result))
        return store

    return change


STATE = {
    "glibc_version": "2.36",
    "git_commit": "0123456789" * 4,
    "is_source_modified": False,
}


@pytest.fixture(scope="session")
def first(make_study: Any) -> Store:
    """A study of a clean commit."""
    return make_study("before", env={"machine_state": STATE})


@pytest.fixture(scope="session")
def second(make_study: Any, slow_down: Any) -> Store:
    """The same of another commit with changes; tf_mirrored is 30 % slower."""
    state = STATE | {"git_commit": "fedcba9876" * 4, "is_source_modified": True}
    store = make_study("after", day=2, env={"machine_state": state})
    return slow_down(store, 1.3, "tf_mirrored")


@pytest.fixture(scope="session")
def elsewhere(make_study: Any) -> Store:
    return make_study(
        "elsewhere",
        day=3,
        fingerprints=("00" * 10,),
        env={"machine_state": STATE, "cpu_model": "Other X9"},
    )
