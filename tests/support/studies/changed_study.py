"""A study whose trials have other observations than were written for it."""

import dataclasses
import json


def _with_records(of, name, change):
    """A study or case with other fields of one record of its trials."""

    def changed(entry):
        fields = change(entry)
        if fields is None or entry.trial is None:
            return entry
        record = getattr(entry.trial, name).model_copy(update=dict(fields))
        trial = dataclasses.replace(entry.trial, **{name: record})
        return dataclasses.replace(entry, trial=trial)

    return dataclasses.replace(of, entries=tuple(map(changed, of.entries)))


def with_results(of, change):
    """A study or case with other fields of the results that a function gives."""
    return _with_records(of, "result", change)


def with_environments(of, change):
    """The same with other fields of the environments."""
    return _with_records(of, "env", change)


def with_blocks(of, change):
    """Returns the same with other fields of each block, or functions of it."""

    def blocks(entry):
        if not entry.is_ok:
            return None
        fields = change(entry)
        return {
            "blocks": tuple(
                block.model_copy(
                    update={
                        k: v(block) if callable(v) else v for k, v in fields.items()
                    }
                )
                for block in entry.result.blocks
            )
        }

    return with_results(of, blocks)


def edit_record(path, **fields):
    """Changes fields of a record on disk."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
