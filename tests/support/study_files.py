"""Files of studies: changed, published or ended; and those of benchmarks."""

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

import psutil

from harness.client import scaling_client
from reports import FORMATS
from results import Store


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


def with_specs(of, **fields):
    """The same with other fields of all specs, whose ids stay."""
    entries = (
        dataclasses.replace(entry, spec=entry.spec.model_copy(update=fields))
        for entry in of.entries
    )
    return dataclasses.replace(of, entries=tuple(entries))


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


def published_file(name, content):
    """Returns what leaves the machine of a trial's file; None for nothing."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "study" / "trials" / "one"
        trial.mkdir(parents=True)
        (trial / "spec.json").write_text("{}")
        (trial / name).write_bytes(content)
        made = FORMATS["zip"].export([Store(trial.parents[1])], None)
    with zipfile.ZipFile(io.BytesIO(made)) as file:
        path = f"study/trials/one/{name}"
        return file.read(path) if path in file.namelist() else None


def processes_of(folder):
    """Returns the living processes of a trial, or of all trials below a folder."""
    root, found = folder.resolve(), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            trial = process.environ().get(scaling_client.TRIAL_VARIABLE, "")
            is_of_it = trial == str(root) or trial.startswith(f"{root}/")
            if is_of_it and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def lines_of(path, kind):
    """Returns the lines of a kind in the file of a rank."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == kind]


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


ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "reports"
PUBLISHED = sorted(path.parent.name for path in SITE.glob("studies/*/records.zip"))


@functools.cache
def _folder():
    folder = Path(tempfile.mkdtemp(prefix="published-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def published(name):
    """Returns the folder of a published study; tests copy what they change."""
    with zipfile.ZipFile(SITE / "studies" / name / "records.zip") as records:
        records.extractall(_folder())
    return _folder() / name


MACHINE = {
    "node": "host-of-somebody",
    "processor": "x86_64",
    "machine": "x86_64",
    "python_version": "3.11.7",
    "release": "6.18.0",
    "system": "Linux",
    "cpu": {"brand_raw": "AMD EPYC", "count": 2},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def benchmark(name, sec, **fields):
    """Returns one benchmark; the median is ``sec``."""
    return {
        "name": name,
        "fullname": f"bench.py::{name}",
        "extra_info": {},
        "stats": {
            "median": sec,
            "mean": 1.1 * sec,
            "min": 0.9 * sec,
            "max": 2 * sec,
            "stddev": 0.1 * sec,
            "rounds": 20,
            "iterations": 1,
        },
        **fields,
    }


def benchmarks(times, **fields):
    """Returns a document of several processes: seconds by benchmark and repetition."""
    return {
        "machine_info": MACHINE,
        "commit_info": {"id": COMMIT, "dirty": True},
        "datetime": "2026-01-01T12:00:00+00:00",
        "version": "5.3.1",
        "benchmarks": [
            benchmark(name, sec, extra_info={"repetition": number})
            for name, medians in times.items()
            for number, sec in enumerate(medians)
        ],
        **fields,
    }


def write_benchmarks(path, times, **fields):
    path.write_text(json.dumps(benchmarks(times, **fields)), encoding="utf-8")
    return path
