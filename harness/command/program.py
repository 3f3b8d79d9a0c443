"""A program of the user's as the planner needs it: a workload of its own kind.

The door for programs that take turns is here as well: what their processes are follows
from ``processes_of``, and what starts them is ``harness/command/worker.py``, which
passes the address of the harness on.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from harness import catalog
from harness.command import identity, numbers, reader
from harness.errors import PlanError
from results.records.record_base import MAX_NAME
from results.records.texts import printable

if TYPE_CHECKING:
    from results.records.models import Program

# The command is split into words as a shell does it, and then started without a shell,
# so that a value can never be more than one word.

MEANINGS: Final = {
    "replicas": "replicas of the trial",
    "per_replica_batch_size": "examples per replica and step",
    "global_batch_size": "examples of all replicas per step",
    "workers": "worker processes: replicas / replicas_per_worker",
    "replicas_per_worker": "replicas of each of them",
    "cores": "logical CPUs of the trial, to which it is pinned",
    "gpus": "GPUs that it sees; 0 with --device cpu",
    "port": "a free TCP port of this machine",
    "seed": "the same for all cases of a repetition",
    "output_dir": "an empty folder, which is removed when the trial ends",
}
"""All placeholders."""
_OF_SIZE: Final = frozenset({"replicas", "workers", "cores", "gpus"})
"""Those of which one must be there, so that a case differs from another."""
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_OF_SHELL = re.compile(
    r"^\s*[A-Za-z_]\w*=|(?<!\S)~(?=[/\s]|$)|[;<>|&`\n]|\$[A-Za-z0-9_({?@*]"
)
PARAM: Final = "--param"
MAX_VARIANTS: Final = 20
_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")


def split(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise PlanError(
            f"--command {command!r} cannot be split into words: {error}; close the"
            " quotation marks"
        ) from error
    if not words:
        raise PlanError(
            "--command is empty; give what starts your program, such as 'python"
            " train.py --replicas {replicas}'"
        )
    return words


def names_in(command: str, params: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the placeholders of a command, each once."""
    names = [match["name"] for match in _PLACEHOLDER.finditer(command) if match["name"]]
    known = {**MEANINGS, **dict.fromkeys(params, "")}
    for name in names:
        catalog.look_up(
            known, name, what="placeholder of --command (write braces twice)"
        )
    return tuple(dict.fromkeys(names))


# ``--param dtype=float32,bfloat16`` makes a variant per value. Variants are cases of
# one study, compared as backends are; a variant is called by its values.


def parse_params(texts: Iterable[str], command: str) -> dict[str, dict[str, str]]:
    """Returns the values of each variant of a command, by its name; none without."""
    params: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split(","))
        if not equals or not _PARAM.fullmatch(name) or "" in values:
            raise PlanError(
                f"{PARAM} {text!r} is not NAME=A,B,...; write for example"
                " dtype=float32,bfloat16, and {dtype} where the command takes it"
            )
        if name in MEANINGS or name in params:
            why = "is given twice" if name in params else "is a placeholder already"
            raise PlanError(f"{PARAM} {name!r} {why}; choose another name")
        if len({*values}) < len(values):
            raise PlanError(f"{PARAM} {text!r} repeats a value; give each once")
        params[name] = values
    used = names_in(command, params)
    for name in (name for name in params if name not in used):
        raise PlanError(
            f"{PARAM} {name} with --command {command!r}, which has no {{{name}}}; write"
            " it where the program takes the value"
        )
    number = math.prod(map(len, params.values()))
    if number > MAX_VARIANTS:
        raise PlanError(
            f"{PARAM} makes {number} variants; allowed are {MAX_VARIANTS}: give fewer"
            " values"
        )
    variants = {}
    for values in itertools.product(*params.values()) if params else ():
        chosen = dict(zip(params, values, strict=True))
        words = " ".join(f"{name}={value}" for name, value in chosen.items())
        if len(words) > MAX_NAME // 2 or not words.isprintable():
            raise PlanError(
                f"{PARAM}: the variant {words[:MAX_NAME]!r} has a name of more than"
                f" {MAX_NAME // 2} printable characters; give shorter values"
            )
        variants[words] = chosen
    return variants


def params_of(variants: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(next(iter(variants.values()), ()))


def check_command(
    command: str, replicas: Iterable[int], params: Iterable[str] = ()
) -> None:
    """Checks that a command can be started, and differs between numbers of replicas."""
    split(command)
    match = _OF_SHELL.search(_QUOTED.sub("_", command))
    if match is not None:
        raise PlanError(
            f"--command {command!r} has {match[0].strip()!r}, which only a shell"
            " understands, and none is started; write sh -c '...' around it, env"
            " NAME=VALUE for a variable, or quotation marks where it is text"
        )
    counts = sorted(set(replicas))
    if len(counts) > 1 and not _OF_SIZE.intersection(names_in(command, params)):
        raise PlanError(
            f"--command {command!r} has no {{replicas}}, so it would be the same"
            f" program with {counts[0]} and {counts[-1]} replicas; write {{replicas}}"
            " (or {workers}, {cores}, {gpus}) where it says how many there are, or"
            f" use --replicas {counts[0]}"
        )


def fill(words: Iterable[str], values: Mapping[str, object]) -> list[str]:
    def value_of(match: re.Match[str]) -> str:
        name = match["name"]
        return match[0][0] if name is None else str(values[name])

    return [_PLACEHOLDER.sub(value_of, word) for word in words]


PRESET: Final = "command"
DATA: Final = "its own"
UNIT: Final = "samples"
NUM_WARMUP: Final = 3
"""Numbers of a program that are left out, unless another number is requested."""
NUM_MEASURED: Final = 30  # Steps of a program that takes turns, and runs alone.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ForeignProgram:
    name: str  # What reports call it.
    record: Program  # What its trials have in common.
    # The parts of its identity, by revision; empty for the present one.
    code: Mapping[str, Mapping[str, str]]
    # The values of ``--param`` of each variant, by its name; empty without any.
    variants: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)

    def code_digest(self, revision: str) -> str:
        return identity.digest(self.code[revision])

    def workload(self, per_replica_batch_size: int) -> catalog.WorkloadInfo:
        return catalog.WorkloadInfo(
            name=self.name,
            version="1",
            example_unit=self.record.unit,
            description="a program of the user's",
            presets=(
                catalog.PresetInfo(
                    name=PRESET,
                    description="as its command says",
                    data=DATA,
                    per_replica_batch_size=per_replica_batch_size,
                    num_warmup_steps=NUM_WARMUP,
                    num_measured_steps=NUM_MEASURED if self.record.is_client else 1,
                ),
            ),
            default_preset=PRESET,
            builtin_data=(DATA,),
            syncs_because="the program says when a step ends",
        )

    @property
    def backends(self) -> list[catalog.BackendInfo]:
        """Returns its variants as backends of one process, which starts the others."""
        return [
            catalog.BackendInfo(
                name=name,
                target="",
                description="a program of the user's",
                kind="peer",
                processes=catalog.ONE_PROCESS,
            )
            for name in self.variants or (self.name,)
        ]


def make(
    record: Program,
    folder: Path,
    *,
    replicas: Iterable[int],
    left_out: Sequence[Path] = (),
    variants: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> ForeignProgram:
    """Returns a program that is checked, and starts in a folder."""
    command, params = record.command, params_of(variants)
    check_command(command, replicas, params)
    names_in(numbers.parse_metric(record.metric).path, params)
    reader.parse_count(record.counts)
    source = identity.find_repository(folder, left_out)
    return ForeignProgram(
        name=name_of(command, folder),
        record=record.model_copy(update={"folder": _place_of(folder, source)}),
        code={"": identity.program_identity(command, folder, source, left_out)},
        variants=variants,
    )


def name_of(command: str, folder: Path) -> str:
    words = identity.words_of(command)
    name = Path(words[0]).name
    if scripts := identity.scripts_of(words[1:], folder):
        name = scripts[0].name
    elif "-m" in words[:-1]:
        name = words[words.index("-m") + 1]
    name = printable(name)[: MAX_NAME // 2]
    return (
        f"{name}-command"
        if name in {*catalog.WORKLOADS, *catalog.BACKENDS, *catalog.PEERS}
        else name
    )


def _place_of(folder: Path, source: identity.Repository | None) -> str:
    """Returns where a folder is in its repository; empty for the top of it."""
    if source is None or folder.resolve() == source.root:
        return ""
    return str(folder.resolve().relative_to(source.root))


def check_folder(record: Program, folder: Path) -> None:
    here = _place_of(folder, identity.find_repository(folder, [folder]))
    if here != record.folder:
        raise PlanError(
            f"the command {record.command!r} was started in"
            f" {record.folder or 'the folder of its repository'!r}, and this is"
            f" {here or 'the folder of the repository'!r}; go there, and repeat"
        )
