"""Reads files of which no subcommand of its own reads each one, as the harness does."""

import contextlib

from harness.command.numbers import parse_metric
from harness.command.reader import MetricFile, ReadingError
from harness.machine import gpus
from harness.run.aggregate import conclude
from harness.run.trial_tree import TrialExit
from reports.words import judgement
from results.errors import ResultsError
from results.judging import gate as gate_module
from results.records.models import StatusRecord
from results.store.study_store import Store


def of_numbers(kind, key):
    """Reads the numbers of a program, as ``--metric`` does."""

    def read(path):
        with contextlib.suppress(ReadingError):
            metric = parse_metric(f"throughput={kind}:out:{key}")
            MetricFile(metric, path).read()

    return read


def of_note(path):
    """Reads what was compiled for which GPUs, as ``doctor`` does."""
    gpus.noted_code(path.parent)


def of_gate(path):
    """Says what a gate concluded, as its page does."""
    with contextlib.suppress(ResultsError):
        if record := gate_module.read_gate(Store(path.parent)):
            view = judgement.GateView(record=record, why_none="", head="a", base="b")
            assert view.sentence
            assert view.level
            assert all(map(judgement.change, record.cases))


def of_trial(path):
    """Concludes what a trial has written, and stores it."""
    place = path.parents[1]
    store, trial_id = Store(place / "runs" / "new"), "0" * 20
    store.trial_dir(trial_id).mkdir(parents=True)
    spec = next(Store(place / "runs" / "v" / "data-digits").trials()).spec
    for exit_code in (0, 1, -9):
        ended = TrialExit(exit_code=exit_code, num_oom_kills=0)
        found = conclude(trial_id, spec, path.parent, ended)
        status = StatusRecord(
            trial_id=trial_id,
            status=found.status,
            started_at="2026-01-01T00:00:00+00:00",
            ended_at="2026-01-01T00:00:00+00:00",
            duration_sec=1.0,
            failure=found.failure,
        )
        store.write_status(trial_id, status)
