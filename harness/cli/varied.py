"""Varied studies: one command that measures a study for each value of one setting.

Each of them is a study as any other, which the same command without ``--vary`` would
make; the folder around them has a page of all.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.cli import commands, exit_codes, running
from harness.command import peers
from harness.errors import DifferentStudyError, PlanError, StudyError
from harness.launch import launchers
from harness.machine.machine_state import now_text
from harness.options.option import declared
from harness.planning import defaults
from harness.planning import plan as plan_module
from harness.planning import study as study_module
from harness.run import sweep as sweep_loop
from harness.run.trial_runner import RunSettings
from harness.sources import code_digest
from harness.sources.code_digest import CodeWatch
from results.records import identity
from results.store import manifest, untrusted
from results.store import studies as studies_lib
from results.store.lock import lock_study
from results.store.studies import Varied
from results.store.study_store import PLAN_NAME, VARIED_NAME, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from harness.cli.verb import Call
    from harness.cli.verbs.sweep_verb import RunRequest


RequestT = TypeVar("RequestT")


def sweep(request: RunRequest, call: Call) -> int:
    """Measures a study for each value, and writes the page of all."""
    axis = request.vary
    assert axis is not None
    if request.is_json:
        raise PlanError(
            "--json is for one study, and --vary makes several; leave it out, and use"
            " 'report NAME/STUDY --format json'"
        )
    asked = study_module.requests(request.model_copy(update={"vary": None}), axis)
    names = [commands.planned_name(of) for of in asked.values()]
    stem, digest = names[0].rpartition("-")[0], identity.digest(names)[:8]
    name = request.study or f"{stem}-{axis.key}-{digest}"
    study_module.check_name(name)
    root = request.runs_dir / name
    known = _existing(root, axis)
    if not request.is_dry_run:
        studies = tuple(dict.fromkeys((*(known.studies if known else ()), *asked)))
        if known is None or studies != known.studies:
            made = Varied(
                key=axis.key,
                studies=studies,
                created_at=known.created_at if known else now_text(),
                command=call.command,
            )
            root.mkdir(parents=True, exist_ok=True)
            studies_lib.write(root, made)
    codes = []
    for value, (study, of) in zip(axis.values, asked.items(), strict=True):
        running.note(f"{name}: {axis.key} {value}")
        words = study_module.without(call.command, "--vary", "--study", "--runs-dir")
        words += [*axis.words(value), "--runs-dir", str(root), "--study", study]
        alone = dataclasses.replace(call, command=tuple(words))
        own = of.model_copy(update={"runs_dir": root, "study": study})
        codes.append(commands.sweep(own, alone))
        if codes[-1] == exit_codes.INTERRUPTED:
            return exit_codes.INTERRUPTED
    if not request.is_dry_run and not request.info.is_submitted():
        write_page(root)
    return combined(codes)


def _existing(root: Path, axis: study_module.Axis) -> Varied | None:
    """Returns what a folder has."""
    if not untrusted.is_there(root):
        return None
    known = studies_lib.read(root) if root.is_dir() else None
    if known is None:
        raise StudyError(
            f"{str(root)!r} exists and is no parameter sweep; choose another --study"
        )
    if known.key != axis.key:
        raise DifferentStudyError(
            f"study {root.name!r} varies {known.key!r}, and this sweep {axis.key!r};"
            " choose another --study"
        )
    return known


def combined(codes: Sequence[int]) -> int:
    """Returns the exit code of several studies: of the worst, or that some are."""
    distinct = set(codes)
    if len(distinct) == 1:
        return codes[0]
    for code in (exit_codes.INTERRUPTED, exit_codes.USAGE, exit_codes.UNFIT):
        if code in distinct:
            return code
    return exit_codes.SOME_TRIALS_FAILED


def write_page(root: Path) -> int:
    """Writes the page of all studies in a folder."""
    from reports import output_file
    from reports.site.build import build_varied

    path = root / "report" / "index.html"
    output_file.write(path, build_varied(root), what="report")
    running.note(f"report: {path}")
    return exit_codes.OK


def names_of(text: str, runs_dir: Path) -> tuple[Path, tuple[str, ...]] | None:
    """Returns the folder of a varied study and its studies; None of any other study."""
    root = study_module.find_study(text, runs_dir)
    found = studies_lib.read(root)
    if found is None:
        return None
    begun = [n for n in found.studies if untrusted.is_there(root / n / PLAN_NAME)]
    return root, tuple(begun)


def expanded(texts: Iterable[str], runs_dir: Path) -> list[str]:
    """Returns the names of studies, each varied one replaced by its own."""
    names = []
    for text in texts:
        found = names_of(text, runs_dir)
        own = [text]
        if found is not None:
            own = [str((found[0] / name).absolute()) for name in found[1]]
        names += own
    return names


def for_each(
    request: Any,
    run: Callable[[Store], int],
    after: Callable[[Path], int] | None = None,
) -> int:
    """Does for a study what a verb does, or for each study of a varied one."""
    found = names_of(request.study, request.runs_dir)
    if found is None:
        root = study_module.find_study(request.study, request.runs_dir)
        return run(Store.open(root))
    root, names = found
    if request.is_json:
        raise StudyError(
            f"--json is for one study, and {root.name!r} has {len(names)}; name"
            f" one, such as {root.name}/{names[0] if names else 'STUDY'}"
        )
    codes = []
    for name in names:
        click.echo(f"{root.name}/{name}")
        codes.append(run(Store.open((root / name).absolute())))
        if codes[-1] == exit_codes.INTERRUPTED:
            return codes[-1]
    if after is not None:
        codes.append(after(root))
    return combined(codes) if codes else exit_codes.NOTHING_MEASURED


def compare(root: Path) -> int:
    """Compares which studies there are, and their page with one made anew."""
    from reports.site import build as site
    from results.verify import check as check_lib
    from results.verify.check import Check

    check, index = Check(), studies_lib.read(root)
    folders = {of.name for of in untrusted.folders_with(root, PLAN_NAME)}
    for name in sorted(folders - set(index.studies if index else ())):
        check.differ(check_lib.FILES, f"{name}/", f"not in {VARIED_NAME}", "a study")
    found = check_lib.read_manifest(root, check)
    if found is not None:  # an earlier version wrote none
        own = manifest.digest_of(root / VARIED_NAME)
        check_lib.compare_digest(VARIED_NAME, own, found, check)
    for item in check.differences:
        both = f"stated {item.stated}, recomputed {item.recomputed}"
        click.echo(f"differs: {item.where}: {both}")
    if check.differences:
        return exit_codes.SOME_TRIALS_FAILED
    path = root / "report" / "index.html"
    try:
        stored = untrusted.read_text(path)
        if stored is None or stored == site.build_varied(root):
            return exit_codes.OK
        said = " is not what the records say; 'report' writes it again"
    except untrusted.DamagedFileError as error:
        said = f": stated {error}, recomputed a page"
    click.echo(f"differs: {path}{said}")
    return exit_codes.SOME_TRIALS_FAILED


_TAKEN = {
    *("study", "runs_dir", "retry", "timeout_sec", "launcher"),
    *("launcher_options", "is_json"),
}
"""What may be said anew of a study that is continued."""


def run_missing(request: RunRequest, call: Call) -> int:
    """Runs the missing trials of a study, or of each study of a varied one."""
    for of in declared(type(request)):
        value = getattr(request, of.field)
        if of.field not in _TAKEN and value != of.value:
            raise PlanError(
                f"{of.spelling} has no effect on a"
                f" study that is continued by its name; leave it out, or repeat the"
                f" whole command of study {request.study!r} to extend it"
            )
    run = functools.partial(_continue, request, call)
    return for_each(request, run, write_page)


def _continue(request: RunRequest, call: Call, store: Store) -> int:
    root, plan = store.root, store.read_plan()
    study_module.check_trials(plan)
    code_digest.check_code(plan, store=store)
    launcher = launchers.start(request.launcher)
    launcher.check(trial.spec for trial in plan.trials)
    launcher.check_folder(root.absolute())
    peers.check_environments(plan.trials, launcher.name, launchers.DEFAULT)
    with lock_study(root):
        missing = sweep_loop.missing_trials(
            store, plan.trials, is_failed_retried=request.retry is not None
        )
        with commands.ready(
            missing, call.overrides, study=plan.study, num_hosts=launcher.num_hosts
        ) as replaced:
            watch = CodeWatch(plan, folders={}, left_out=[root.parent, root])
            settings = RunSettings(
                timeout_sec=plan.timeout_sec
                if request.timeout_sec == defaults.TIMEOUT_SEC
                else request.timeout_sec,
                is_failed_retried=request.retry is not None,
                data_dir=plan_module.data_dir_here() or plan.data_dir,
                measuring=plan.measuring,
                launcher=launcher,
                changed_code=watch.changed,
                **replaced,
            )
            conclude = functools.partial(
                running.conclude_sweep, is_json=request.is_json
            )
            return running.run_until_done(store, plan.trials, settings, conclude)
