"""Which trials of a store have ended."""

import hashlib
import re

from results import Store


def ended_ids(store):
    """Returns the ids of the readable trials that have a status, whichever."""
    return frozenset(
        trial.trial_id for trial in store.read().trials if trial.status is not None
    )


def finished_in(root):
    """The status of each trial that a later run must not touch, by its id."""
    if not (root / "plan.json").is_file():
        return {}
    store = Store(root)
    planned = store.read_plan().trials
    ended = {
        trial.trial_id: store.trial_dir(trial.trial_id) / "status.json"
        for trial in planned
        if (store.trial_dir(trial.trial_id) / "status.json").is_file()
    }
    left = {
        trial.spec.repetition_index for trial in planned if trial.trial_id not in ended
    }
    if planned[0].spec.order.value == "sequential":
        left = set()
    return {
        trial.trial_id: ended[trial.trial_id].read_bytes()
        for trial in planned
        if trial.trial_id in ended and trial.spec.repetition_index not in left
    }


_OBSERVED = re.compile(r"rank_\d+\.jsonl|blocks\.jsonl|(?:result|status)\.json")


def observed_in(root):
    """The digests of what trials have observed, in whichever folder of the study."""
    return {
        hashlib.blake2b(content, digest_size=20).hexdigest()
        for path in root.rglob("*.json*")
        if _OBSERVED.fullmatch(path.name)
        for content in [path.read_bytes()]
        if not path.name.startswith("rank_") or b'"kind": "step"' in content
    }
