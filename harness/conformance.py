"""Checks a program in any language against the protocol of the client.

python -m harness.conformance [--timeout SEC] [--only CHECK] -- COMMAND...

The command, which may have placeholders such as {per_replica_batch_size}, is started as
a trial of a study starts it, several times. Prints a line per check; the exit code is 0
if the program passes all, 4 if not, 2 if there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import psutil

from harness.client.scaling_client import ADDRESS_VARIABLE, TRIAL_FILE
from harness.command import program
from harness.errors import PlanError
from harness.machine.allocation import ONE_PROCESS
from harness.run import trial_tree
from harness.run.trial_runner import RunSettings
from harness.run.trial_tree import ProcessTree, Session, SessionEndedError
from harness.trial import process_tree, rank_file
from harness.trial.rank_file import rank_path
from replicator.cluster.local_cluster import free_ports
from results.records import protocol as client_protocol
from results.records.protocol import ProtocolError, TrialFile
from results.store import untrusted
from results.verify import trials

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.run.trial_runner import Prepared
    from harness.run.trial_tree import TrialExit


NUM_MEASURED_STEPS: Final = 12
ASKED: Final[dict[str, Any]] = {
    "num_replicas": 2,
    "per_replica_batch_size": 4,
    "global_batch_size": 8,
    "unit": "examples",
    "seed": 7,
    "num_warmup_steps": 3,
    "num_measured_steps": NUM_MEASURED_STEPS,
    "control": "none",
    "is_evaluated": True,
}
"""What the trials of the checks ask for; ``None`` steps wait for blocks."""
BLOCKS: Final = ((0, 0, 4), (0, 1, 4), (1, 0, 3))
"""Round, attempt and steps of each block: the first one is discarded, and repeated."""
NO_SUCH_VERSION: Final = 99
CONTROL: Final = "nosync"
# The last argument is the directory of the trial, which programs find in a variable.
_START: Final = """
import os, sys
os.chdir(sys.argv[1])
os.execvp(sys.argv[2], sys.argv[2:-1])
"""


class NonconformingError(Exception):
    """What a program does wrong; one line."""


class Checked:
    """A trial of a check, in the form that ``Session`` starts: it runs alone."""

    processes = ONE_PROCESS  # A program says itself how many it has.
    is_client = True
    settings = RunSettings(timeout_sec=0.0)

    def __init__(
        self, folder: Path, command: Sequence[str], timeout_sec: float, **asked: Any
    ) -> None:
        self.trial_dir, self.timeout_sec = folder, timeout_sec
        output_dir = folder / "output"
        output_dir.mkdir(parents=True)
        version = asked.pop("protocol", client_protocol.VERSION)
        content = TrialFile.model_validate({**ASKED, **asked}).model_dump(mode="json")
        text = json.dumps({**content, "protocol": version})
        (folder / TRIAL_FILE).write_text(text + "\n", encoding="utf-8")
        values = {
            **content,
            "replicas": content["num_replicas"],
            "workers": content["num_replicas"],
            "replicas_per_worker": 1,
            "cores": len(os.sched_getaffinity(0)),
            "gpus": 0,
            "port": free_ports(1)[0],
            "output_dir": output_dir,
        }
        words = program.fill(command, values)
        self.command = (sys.executable, "-c", _START, str(Path.cwd()), *words)
        self.variables = {
            **{k: v for k, v in os.environ.items() if k != ADDRESS_VARIABLE},
            process_tree.MARKER: str(folder.resolve()),
            trial_tree.VARIABLE: str(trial_tree.folder_of(folder)),
        }

    def run(self) -> TrialExit:
        """Runs it without a connection."""
        with ProcessTree(self.trial_dir, self.variables, self.command) as tree:
            ended = tree.finish(self.timeout_sec, limit_sec=self.timeout_sec)
        _check_time(ended)
        return ended

    @contextlib.contextmanager
    def met(self) -> Iterator[Session]:
        """Yields it connected and warm; leaves nothing of it behind."""
        session = Session(cast("Prepared", self), timeout_sec=self.timeout_sec)
        try:
            session.start()
            session.receive("imported")
            session.send("build", is_alone=True)
            session.receive("built")
            session.send("warm_up", heap_fraction=0.0)
            session.receive("ready")
            yield session
        except SessionEndedError:
            assert session.exit is not None
            self.check_end(session.exit)
            raise NonconformingError(
                f"it ended while {session.awaited!r} was expected; its last line:"
                f" {self.last_line()!r}"
            ) from None
        finally:
            session.kill()

    def last_line(self) -> str:
        text = untrusted.tail(self.trial_dir / "stderr.log", 2**20)
        lines = [line for line in text.splitlines() if line.strip()]
        return (lines or [""])[-1][:300]

    def check_end(self, ended: TrialExit) -> None:
        _check_time(ended)
        if reason := rank_file.read_first_exit(self.trial_dir).reason:
            raise NonconformingError(reason)
        if ended.exit_code:
            raise NonconformingError(
                f"exit code {ended.exit_code}; its last line: {self.last_line()!r}"
            )

    def check_files(self, num_measured_steps: int, num_blocks: int) -> str:
        """Reads the files of all ranks; returns what they say."""
        num_ranks, has_losses = _read_rank(self.trial_dir, 0, 1)
        for rank in range(1, num_ranks):
            _read_rank(self.trial_dir, rank, num_ranks)
        try:
            raw = trials.read_trial(self.trial_dir, ASKED["num_warmup_steps"])
        except (trials.RawError, FileNotFoundError) as error:
            raise NonconformingError(str(error)) from error
        facts, asked_size = raw.result, ASKED["global_batch_size"]
        counts = [
            ("global_batch_size", facts["global_batch_size"], asked_size),
            ("example_unit", facts["example_unit"], ASKED["unit"]),
            ("number of blocks", len(facts["blocks"]), num_blocks),
        ]
        for times in facts["ranks"]:
            name = f"rank {times['rank']}: number of"
            warmup, measured = times["warmup_step_time_sec"], times["step_time_sec"]
            counts += [
                (f"{name} warm-up steps", len(warmup), ASKED["num_warmup_steps"]),
                (f"{name} measured steps", len(measured), num_measured_steps),
            ]
        for name, stated, asked in counts:
            if stated != asked:
                raise NonconformingError(f"{name} is {stated}, {asked} was asked for")
        if not raw.is_complete:
            raise NonconformingError(
                "a rank has no line 'done', or failed a check of correctness"
            )
        ranks = f"{num_ranks} rank{'s' * (num_ranks > 1)}"
        return f"{ranks}, {'with' if has_losses else 'without'} losses"


def _check_time(ended: TrialExit) -> None:
    if ended.timeout_sec is not None:
        raise NonconformingError("it did not answer, or end, within the time limit")


def _read_rank(folder: Path, rank: int, num_ranks: int) -> tuple[int, bool]:
    """Returns how many ranks there are as one says, and whether it has losses."""
    path = rank_path(folder, rank)
    if not path.exists():
        raise NonconformingError(f"rank {rank} of {num_ranks} wrote no {path.name}")
    lines: list[dict[str, Any]] = []
    try:
        lines.extend(
            client_protocol.read_line(line).model_dump(mode="json")
            for line in path.open("rb")
        )
    except ProtocolError as error:
        where = f"{path.name} line {len(lines) + 1}"
        raise NonconformingError(f"{where}: {error}") from error
    if reasons := [line["reason"] for line in lines if line["kind"] == "failure"]:
        raise NonconformingError(f"rank {rank} recorded a failure: {reasons[-1]}")
    clients = [line for line in lines if line["kind"] == "client"]
    if len(clients) != 1 or clients[0]["rank"] != rank:
        raise NonconformingError(f"{path.name} needs one line 'client' of its rank")
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    num_losses = sum(loss is not None for loss in losses)
    if num_losses not in (0, len(losses)):
        raise NonconformingError(
            f"{path.name} has losses of {num_losses} of {len(losses)} steps; give all"
            " of them, or none"
        )
    return int(clients[0]["num_ranks"]), bool(num_losses)


def runs_alone(folder: Path, *given: Any) -> str:
    """A trial without a connection: warm-up, then as many steps as asked for."""
    trial = Checked(folder, *given)
    trial.check_end(trial.run())
    return trial.check_files(NUM_MEASURED_STEPS, 0)


def takes_turns(folder: Path, *given: Any) -> str:
    """It waits for its blocks, and runs in each as many steps as it is told."""
    trial = Checked(folder, *given, num_measured_steps=None)
    with trial.met() as session:
        for round_index, attempt, num_steps in BLOCKS:
            fields = {"round_index": round_index, "attempt": attempt}
            session.send("turn", **fields, num_steps=num_steps)
            for answer in session.receive("turn"):
                said = answer["round_index"], answer["attempt"], answer["num_steps"]
                if said != (round_index, attempt, num_steps):
                    raise NonconformingError(
                        f"the answer to block {round_index}, attempt {attempt} of"
                        f" {num_steps} steps repeats {said}"
                    )
        session.send("finish")
        trial.check_end(session.wait(trial.timeout_sec))
    return trial.check_files(sum(block[-1] for block in BLOCKS), len(BLOCKS))


def has_or_refuses_controls(folder: Path, *given: Any) -> str:
    """It leaves out what a control says, or fails: it never ignores one."""
    trial = Checked(folder, *given, control=CONTROL)
    code = trial.run().exit_code
    if code == 0:
        trial.check_files(NUM_MEASURED_STEPS, 0)
        return f"it has the control {CONTROL!r}"
    if CONTROL not in trial.last_line():
        raise NonconformingError(
            f"the control {CONTROL!r} ends it with exit code {code}, and its"
            f" last line does not name the control: {trial.last_line()!r}"
        )
    return f"it refuses the control {CONTROL!r}, by name"


def refuses_other_versions(folder: Path, *given: Any) -> str:
    """A ``client.json`` of another version ends it, with one line that says so."""
    trial = Checked(folder, *given, protocol=NO_SUCH_VERSION)
    code = trial.run().exit_code
    if not code or str(NO_SUCH_VERSION) not in trial.last_line():
        raise NonconformingError(
            f"client.json of version {NO_SUCH_VERSION} gave exit code {code} and the"
            f" last line {trial.last_line()!r}; end with an exit code that is not 0,"
            " and name the version on stderr"
        )
    return "exit code and last line say so"


def ends_without_harness(folder: Path, *given: Any) -> str:
    """It ends by itself when the harness has gone while it waits."""
    trial = Checked(folder, *given, num_measured_steps=None)
    with trial.met() as session:
        processes = session.processes()
        session.close()
        _, running = psutil.wait_procs(processes, trial.timeout_sec)
        if running:
            raise NonconformingError(
                "the connection was closed while it waited, and"
                f" {trial.timeout_sec:g} s later it still ran; treat end-of-file as an"
                " error, and exit"
            )
    return "all its processes ended"


CHECKS: Final = {
    "runs alone": runs_alone,
    "takes turns": takes_turns,
    "controls": has_or_refuses_controls,
    "other versions": refuses_other_versions,
    "lost harness": ends_without_harness,
}
"""Every check, by name: takes a new folder, the command and a time limit."""


PASSED, BAD_REQUEST, FAILED = 0, 2, 4


def main(arguments: Sequence[str] | None = None) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m harness.conformance", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SEC")
    parser.add_argument("--only", choices=list(CHECKS), action="append")
    parser.add_argument("command", nargs="+", help="the program and its arguments")
    options = parser.parse_args(arguments)
    command: list[str] = options.command
    if shutil.which(command[0]) is None:
        sys.stderr.write(
            f"error: there is no program {command[0]!r} here; give its path, or one"
            " that is in PATH, after '--'\n"
        )
        return BAD_REQUEST
    try:
        for word in command:
            program.names_in(word)
    except PlanError as error:
        sys.stderr.write(f"error: {error}\n")
        return BAD_REQUEST
    num_failed = 0
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for number, name in enumerate(options.only or CHECKS):
            try:
                own = Path(folder) / str(number)
                detail = CHECKS[name](own, command, options.timeout)
            except NonconformingError as error:
                num_failed += 1
                sys.stdout.write(f"failed  {name:<15} {error}\n")
            else:
                sys.stdout.write(f"ok      {name:<15} {detail}\n")
            sys.stdout.flush()
    return FAILED if num_failed else PASSED


if __name__ == "__main__":
    sys.exit(main())
