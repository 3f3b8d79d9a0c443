"""A study whose trials have other observations than were written for it."""

import dataclasses


def with_results(of, change):
    """A study or case with other fields of the results that a function gives."""

    def changed(entry):
        fields = change(entry)
        if fields is None or entry.trial is None:
            return entry
        result = entry.result.model_copy(update=dict(fields))
        trial = dataclasses.replace(entry.trial, result=result)
        return dataclasses.replace(entry, trial=trial)

    return dataclasses.replace(of, entries=tuple(map(changed, of.entries)))


def with_turns(of, change):
    """Returns the same with other fields of every turn; they may be functions of it."""

    def turns(entry):
        if not entry.is_ok:
            return None
        fields = change(entry)
        return {
            "turns": tuple(
                turn.model_copy(
                    update={k: v(turn) if callable(v) else v for k, v in fields.items()}
                )
                for turn in entry.result.turns
            )
        }

    return with_results(of, turns)
