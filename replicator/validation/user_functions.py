"""The functions that users hand over: can they be called as they will be?"""

from __future__ import annotations

import inspect
from typing import Any

from replicator.validation.arguments import shown


def name_of(function: Any) -> str:
    """What a message calls a function by."""
    inner = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def check_input_fn(input_fn: Any, caller: str) -> None:
    """Refuses what cannot be called with an ``InputContext``.

    Args:
      input_fn: What the user passed.
      caller: Name of the method that the user called.

    Raises:
      TypeError: With what to write instead.
    """
    if not callable(input_fn):
        raise TypeError(
            f"{caller}() takes a function that makes a dataset, but got a "
            f"{type(input_fn).__name__!r}; write def input_fn(ctx): return "
            "dataset.batch(ctx.get_per_replica_batch_size(n)), and pass input_fn; or "
            f"{caller}(lambda ctx: dataset), if its batches are those of one replica"
        )
    if not _takes(input_fn, 1):
        raise TypeError(
            f"{caller}() calls {name_of(input_fn)!r} with one argument, an "
            "InputContext, which it does not take; write def input_fn(ctx): even where "
            "ctx is not needed"
        )


def check_takes_one(function: Any, caller: str, argument: str, what: str) -> None:
    """Refuses what cannot be called with one argument.

    Args:
      function: What the user passed.
      caller: Name of the function that the user called.
      argument: Name of the parameter.
      what: What it will be called with, such as ``an item``.

    Raises:
      TypeError: With what to write instead.
    """
    if not callable(function):
        raise TypeError(
            f"{caller}() calls {argument} with {what}, but got {shown(function)}, "
            "which is no function; pass a function of one argument"
        )
    if not _takes(function, 1):
        raise TypeError(
            f"{caller}() calls {argument} with {what}, but {name_of(function)!r} does "
            "not take one argument; pass a function of one argument"
        )


def check_step_fn(step_fn: Any, *, takes_batch: bool) -> None:
    """Refuses what cannot be called as a step.

    Args:
      step_fn: What the user passed.
      takes_batch: Whether there are inputs.

    Raises:
      TypeError: With what to write instead.
    """
    if not callable(step_fn):
        raise TypeError(
            f"run() takes a step function, but got a {type(step_fn).__name__!r}; pass "
            "the function itself, run(step_fn, inputs), and not what it returns"
        )
    if _takes(step_fn, 1 if takes_batch else 0):
        return
    name = name_of(step_fn)
    if not takes_batch:
        raise TypeError(
            f"step {name!r} takes arguments, but run() got no inputs for it; write "
            "run(step_fn, inputs) with inputs = repl.make_input_iterator(input_fn), or "
            "a step without arguments"
        )
    if _takes(step_fn, 0):
        raise TypeError(
            f"step {name!r} takes no argument, but run() got inputs; write def "
            "step_fn(batch):, or run(step_fn) without inputs"
        )
    raise TypeError(
        f"step {name!r} cannot be called with one argument, but run(step_fn, inputs) "
        "passes the whole batch as one; write def step_fn(batch): x, y = batch, and "
        "repl.run(step_fn, inputs)"
    )


def check_no_more(caller: str, more: tuple[Any, ...], others: dict[str, Any]) -> None:
    """Refuses arguments in the way of ``tf.distribute``.

    Args:
      caller: Name of the method that the user called.
      more: Positional arguments behind those it takes.
      others: Keyword arguments that it does not take.

    Raises:
      TypeError: With what to write instead.
    """
    if more or others:
        got = [f"{name}=" for name in others] or [f"{len(more)} arguments more"]
        raise TypeError(
            f"{caller}() does not take {', '.join(got)}; write "
            f"repl.{caller}(step_fn, inputs, num_steps=k) with inputs = "
            "repl.make_input_iterator(input_fn), or a nest of PerReplica such as "
            "(x, y); the step takes it as one: def step_fn(batch): x, y = batch"
        )


def _takes(function: Any, num_arguments: int) -> bool:
    """Whether a function can be called with so many positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a builtin that does not say
    try:
        signature.bind(*range(num_arguments))
    except TypeError:
        return False
    return True
