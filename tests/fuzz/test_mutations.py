"""Faults that the grammar draws programs for: put back, they show."""

import dataclasses
import types

import pytest
import written_programs
from fuzzing import checking, comparing, syntax

from replicator.collectives import vectorized


@pytest.mark.parametrize(
    "changes",
    [
        {"outside": (syntax.Outside(step=1, variable="w", kind="same"),)},
        {"fails": (1, 1), "recovers": "same"},
    ],
    ids=["between_steps", "after_a_failure"],
)
def test_an_assignment_of_the_value_that_is_read_is_one(monkeypatch, changes):
    """Each replica adds to a count of its own; what is assigned is that of all."""
    program = dataclasses.replace(
        written_programs.program(
            [
                syntax.Read(result="v", variable="w"),
                syntax.Write(variable="w", method="assign_add", argument="b"),
                syntax.Fail(result="x", argument="b", is_late=True),
            ],
            "v",
            "x",
            variables=[
                written_programs.weight(
                    synchronization="ON_READ", aggregation="ONLY_FIRST_REPLICA"
                )
            ],
            setting=dataclasses.replace(
                written_programs.SHARED, num_steps=2, **changes
            ),
        ),
        inputs=(("b", written_programs.FLOAT3), ("f", syntax.Type(syntax.BOOL))),
    )

    assert checking.Verdict.SAME is checking.check(program)

    monkeypatch.setattr("replicator.variables.resets.Resets.force", lambda *_: None)
    with pytest.raises(comparing.DifferenceError, match="replica 1, output 0"):
        checking.check(program)


@pytest.mark.parametrize("num_unknown", [0, 2])
def test_a_join_of_what_all_rows_share_is_one(monkeypatch, num_unknown):
    """It depends on the size of a row, which only the step knows."""
    rows = syntax.Type(syntax.FLOAT, (2, 3))
    body = [
        written_programs.compute("x", "{0} * tf.cast(tf.size({1}), FLOAT)", "b", "row"),
        syntax.Communicate(
            results=("s",), arguments=("x",), kind="all_reduce", parameter="sum"
        ),
        written_programs.compute("y", "{0} + tf.reduce_sum({1})", "row", "s"),
    ]
    mapped = syntax.Vectorize(
        result="v",
        argument="c",
        parameter="row",
        body=syntax.Block(statements=tuple(body), result="y"),
        shape=rows.shape,
        num_unknown=num_unknown,
    )
    program = dataclasses.replace(
        written_programs.program([mapped], "v"),
        inputs=(("b", written_programs.FLOAT3), ("c", rows)),
    )

    assert checking.Verdict.SAME is checking.check(program)
    if not num_unknown:
        return  # the join is then outside of the loop

    def dropped(_context, _kind, operands):
        return operands

    monkeypatch.setattr(
        vectorized, "differentiable", types.SimpleNamespace(communicate=dropped)
    )
    with pytest.raises(comparing.DifferenceError, match="replica 0, output 0"):
        checking.check(program)
