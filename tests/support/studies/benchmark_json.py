"""Files as ``pytest --benchmark-json`` writes them, of what nobody measured."""

import json

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


def entry(name, sec, **fields):
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


def document(times, **fields):
    """Returns a document of several processes: seconds by benchmark and repetition."""
    return {
        "machine_info": MACHINE,
        "commit_info": {"id": COMMIT, "dirty": True},
        "datetime": "2026-01-01T12:00:00+00:00",
        "version": "5.3.1",
        "benchmarks": [
            entry(name, sec, extra_info={"repetition": number})
            for name, medians in times.items()
            for number, sec in enumerate(medians)
        ],
        **fields,
    }


def write(path, times, **fields):
    path.write_text(json.dumps(document(times, **fields)), encoding="utf-8")
    return path
