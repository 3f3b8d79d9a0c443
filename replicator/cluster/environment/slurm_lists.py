"""The notations of Slurm for lists of nodes, of counts and of ports."""

from __future__ import annotations

import itertools
import re

from replicator.errors import ClusterConfigError

MAX_NODES = 100_000
"""More are a mistake, and would fill the memory before anybody noticed."""
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_PART = re.compile(r"\[([^\[\]]*)\]")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")


def expand_nodes(text: str) -> tuple[str, ...]:
    """Returns the names in a list of nodes, such as ``n[0-1,5],gpu-[01-03]``.

    As ``scontrol show hostnames`` does: in the order of the list, with leading zeros.

    Raises:
      ClusterConfigError: It is malformed.
    """
    names: list[str] = []
    for part in _split(text):
        pieces = _PART.split(part)
        plain, inside = pieces[::2], pieces[1::2]
        if not part or not all(map(_PLAIN.fullmatch, plain)):
            raise _malformed_nodes(text, part)
        choices = [_expand_range(text, piece) for piece in inside]
        for chosen in itertools.product(*choices):
            pairs = itertools.zip_longest(plain, chosen, fillvalue="")
            names.append("".join(itertools.chain.from_iterable(pairs)))
            if len(names) > MAX_NODES:
                raise _malformed_nodes(text, f"more than {MAX_NODES} nodes")
    return tuple(names)


def expand_counts(text: str) -> tuple[int, ...]:
    """Returns the counts in a list such as ``2(x2),1``: 2, 2 and 1.

    Raises:
      ClusterConfigError: It is malformed.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        repeats = int(match[2] or 1) if match else 0
        if match is None or not 0 < repeats <= MAX_NODES:
            raise ClusterConfigError(
                f"{text!r} is not a list of tasks per node: {part!r} is wrong; Slurm"
                " writes for example '2(x2),1'"
            )
        counts += [int(match[1])] * repeats
    return tuple(counts)


def expand_ports(text: str) -> tuple[int, ...]:
    """Returns the ports in a list such as ``12000-12001,12004``.

    Raises:
      ClusterConfigError: It is malformed.
    """
    return tuple(int(number) for number in _expand_range(text, text.strip("[]")))


def _split(text: str) -> list[str]:
    """Splits at the commas that are not in brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _expand_range(text: str, inside: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        is_valid = _NUMBER.fullmatch(first) and _NUMBER.fullmatch(last)
        if not is_valid or not 0 <= int(last) - int(first) < MAX_NODES:
            raise _malformed_nodes(text, part)
        width = len(first)
        found += [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
    return found


def _malformed_nodes(text: str, part: str) -> ClusterConfigError:
    return ClusterConfigError(
        f"{text[:200]!r} is not a list of Slurm: {part[:100]!r} is wrong; Slurm writes"
        " for example 'n[0-1,5],gpu-[01-03]'"
    )
