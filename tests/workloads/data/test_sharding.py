"""Pipelines share a split exactly, and the audit notices when they do not."""

import pytest

from workloads.data import audit, pipeline, reading


@pytest.mark.parametrize(
    "num_pipelines",
    [pytest.param(count, marks=pytest.mark.full) for count in (1, 2)] + [3],
)
def test_shards_cover_the_split_exactly_once(digits, num_pipelines, contexts):
    """Over all pipelines an epoch has every id once, also where shares differ.

    The full run adds numbers of pipelines whose shares are equal.
    """
    check = audit.check_shards(digits, contexts(num_pipelines))

    assert check.is_passed, check.detail
    assert "0 missing, 0 read more than once" in check.detail


def test_audit_catches_a_pipeline_that_ignores_its_context(digits, contexts):
    """Two pipelines that both read everything fail the audit."""
    check = audit.check_shards(digits, contexts(2), lambda *_: "train")

    assert not check.is_passed
    assert "0 missing, 1438 read more than once" in check.detail


def test_audit_catches_a_repeated_context(digits, contexts):
    """A replicator that gives both pipelines the same id fails the audit."""
    check = audit.check_shards(digits, [contexts(2)[0]] * 2)

    assert not check.is_passed
    assert "719 missing, 719 read more than once" in check.detail


def test_audit_of_a_large_split_checks_ranges(digits, monkeypatch, contexts):
    """Beyond the reading limit the ranges are checked, and still catch a repeat."""
    monkeypatch.setattr(audit, "_MOST_IDS_READ", 10)

    good = audit.check_shards(digits, contexts(3))
    bad = audit.check_shards(digits, [contexts(3)[0]] * 3)

    assert good.is_passed, good.detail
    assert not bad.is_passed
    assert "ids not read" in good.detail


def test_pipelines_of_other_processes_are_taken_into_account(digits, contexts):
    """One worker of three sees its own context; a wrong pair of own ones is found."""
    good = audit.check_shards(digits, [contexts(3)[1]])
    bad = audit.check_shards(digits, [contexts(3)[1]] * 2)

    assert good.is_passed
    assert good.detail.startswith("3 input pipelines")
    assert not bad.is_passed


def test_pipelines_of_different_contexts_read_different_examples(
    digits, contexts, make_config
):
    """What training pipelines yield in their first epoch is disjoint and complete."""
    seen = []
    for context in contexts(2):
        dataset = pipeline.train_dataset(
            digits, context, make_config(per_replica_batch_size=719)
        )
        seen.append(set(next(iter(dataset))["example_id"].numpy()))

    assert len(seen[0] | seen[1]) == 1438


def test_consumed_audit_catches_a_batch_given_to_two_replicas():
    """An id twice within a step, or twice within an epoch, fails; later epochs pass."""
    good = audit.check_consumed(
        [(4, [1, 2, 3, 4]), (8, [5, 6, 7, 8])], first_epoch_size=8
    )
    same_step = audit.check_consumed([(4, [1, 2, 1, 2])], first_epoch_size=8)
    same_epoch = audit.check_consumed(
        [(4, [1, 2, 3, 4]), (8, [5, 6, 7, 1])], first_epoch_size=8
    )
    next_epoch = audit.check_consumed(
        [(4, [1, 2, 3, 4]), (12, [5, 6, 7, 1])], first_epoch_size=8
    )
    # The last of one epoch was the first of the next: a shuffle may do that.
    both_epochs = audit.check_consumed(
        [(4, [1, 2, 3, 4]), (12, [5, 6, 5, 1])], first_epoch_size=8
    )

    assert good.is_passed
    assert next_epoch.is_passed
    assert both_epochs.is_passed
    assert not same_step.is_passed
    assert not same_epoch.is_passed
    assert (
        "8 examples in 2 steps of the first epoch (2 recorded), 1 of them"
        in same_epoch.detail
    )


def test_audit_of_no_step_fails():
    """Nothing recorded is no proof."""
    assert not audit.check_consumed([], first_epoch_size=8).is_passed


def test_more_pipelines_than_examples_is_an_error(photos, contexts):
    """A pipeline without an example is refused with both numbers."""
    with pytest.raises(
        ValueError, match=r"12 training examples for 13 input pipelines"
    ):
        reading.shard(photos, contexts(13)[12])
