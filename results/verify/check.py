"""Recomputes what a study states from its raw observations, and collects what differs.

Records are compared with rank files (``trials.py``), headline figures with the same
figures from rank files, and every file with the manifest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from results.figures import conditions, scaling
from results.judging.gate import GATE_NAME
from results.store import manifest, study_store, untrusted
from results.store.manifest import MANIFEST_NAME, NOTHING
from results.store.study_store import EQUIVALENCE_NAME, PLAN_NAME, TRIALS_NAME
from results.study import equivalence
from results.study.cases import CORRUPT, equivalence_entries, load_study
from results.verify import trials
from results.verify.trials import QUALITY

if TYPE_CHECKING:
    import pathlib

    from results.statistics.estimates import Estimate
    from results.store.manifest import Listed
    from results.store.study_store import Store
    from results.study.cases import Case, Entry, Key, Study
    from results.verify.trials import Fields, Raws

    Logs = Mapping[Key, Mapping[int, float]]  # By repetition and round.


# Of ``results/figures`` only is taken which cases are compared. Disturbed blocks alone
# are no evidence, and left out; an interval that allows for load is only known to be
# wide enough.
RATIO, CONTROL = "ratios of backends", "A/A control"
LOSSES, VERDICT = "losses of equivalence checks", "verdict"
OF_CASES: Final = ("throughput", "speedup", "efficiency")
KINDS: Final = (*OF_CASES, RATIO, CONTROL, QUALITY, LOSSES, VERDICT)
TOLERANCE: Final = 1e-9
_WIDENING, _MOST_DISCARDED = 1.1, 0.3


class Figure(NamedTuple):
    """A figure and its interval, as logarithms."""

    centre: float
    half: float | None  # Half width of the interval, None without one.
    n: int  # Repetitions, or repetitions.
    is_least: bool = False  # Whether the interval may be wider.


def compare_headlines(study: Study, raws: Raws, matched: Raws, check: Check) -> None:
    compare_one = functools.partial(_compare_estimate, check)
    ratio_of = functools.partial(functools.partial, _ratio, raws)
    baseline_n = study.plan.baseline_num_replicas
    for point in scaling.points(study):
        where = f"{point.backend} {point.mode.value} x{point.num_replicas}"
        own = functools.partial(_throughput, raws, point.case)
        compare_one("throughput", where, point.throughput, own)
        if not point.is_baseline and point.baseline is not None:
            both = ratio_of(point.case, point.baseline)
            compare_one("speedup", where, point.speedup, both, baseline_n)
            of_one = baseline_n / point.num_replicas
            compare_one("efficiency", where, point.efficiency, both, of_one)
    for pair in scaling.compare_backends(study):
        first, second = pair.first.spec, pair.second.spec
        where = f"{first.backend} / {second.backend} {pair.modes[0].value}"
        where = f"{where} x{first.num_replicas}"
        compare_one(RATIO, where, pair.ratio, ratio_of(pair.first, pair.second))
    if aa_control := conditions.aa_control_of(study):
        both = ratio_of(aa_control.control, aa_control.case)
        compare_one(CONTROL, aa_control.case.label, aa_control.ratio, both)
    for match in study.matches:
        if match.outcome is not equivalence.Outcome.NOT_CHECKED:
            losses = functools.partial(_loss_difference, study, match, matched)
            _compare(check, LOSSES, match.label, match.loss_difference, losses)


def _compare(
    check: Check, kind: str, where: str, stated: object, recompute: Callable[[], object]
) -> None:
    where = f"{kind} of {where}"
    try:
        derived = recompute()
    except KeyError as missing:
        check.lack(kind, f"{where}: trial {missing.args[0]} has no raw observations")
        return
    if stated is not None or derived is not None:
        check.compare(kind, where, stated, derived, TOLERANCE)


def _compare_estimate(
    check: Check,
    kind: str,
    where: str,
    stated: Estimate | None,
    recompute: Callable[[], Figure | None],
    factor: float = 1.0,
) -> None:
    """Compares value, n and interval with a figure times a factor."""
    if stated is None:
        _compare(check, kind, where, None, recompute)
        return
    numbers = [
        number
        for number in (stated.value, stated.low, stated.high)
        if number is not None
    ]
    widening = _WIDENING if "widened" in stated.method else 1.0

    def again() -> tuple[float, ...] | None:
        if (figure := recompute()) is None:
            return None
        halves = [0.0] if figure.half is None else [0.0, -figure.half, figure.half]
        logs = [figure.centre + widening * half for half in halves]
        derived = [factor * math.exp(log) for log in logs]
        if figure.is_least and len(numbers) == len(derived) == 3:  # noqa: PLR2004
            derived[1:] = min(derived[1], numbers[1]), max(derived[2], numbers[2])
        return (*derived, figure.n)

    if not stated.is_disturbed:
        _compare(check, kind, where, (*numbers, stated.n), again)


def _results(raws: Raws, entries: Iterable[Entry]) -> dict[Key, Fields]:
    """Returns raw results by repetition; raises KeyError of a trial without."""
    return {entry.key: raws[entry.trial_id].result for entry in entries}


def log_rates(results: Mapping[Key, Fields]) -> Logs:
    """Returns logs of examples per second of valid blocks or windows, where any is."""
    logs_of = {}
    for key, result in results.items():
        batch, blocks = result["global_batch_size"], result["blocks"]
        rates = {
            block["round_index"]: batch * block["num_steps"] / (ns / 1e9)
            for block in blocks
            if not (block["is_discarded"] or block["is_sustained"])
            and (ns := block["end_ns"] - block["start_ns"])
        }
        if not blocks:
            rates = {0: batch * result["num_measured_steps"] / result["window_sec"]}
        logs_of[key] = {index: math.log(rate) for index, rate in rates.items()}
    return {key: logs for key, logs in logs_of.items() if logs}


def _throughput(raws: Raws, case: Case) -> Figure | None:
    rates = log_rates(_results(raws, case.ok_entries))
    logs = [[*rates_of.values()] for rates_of in rates.values()]
    return over_rounds(logs) if logs else None


def _ratio(raws: Raws, first: Case, second: Case) -> Figure | None:
    """Returns the ratio of two cases, in pairs of rounds or repetitions if possible."""
    sides = [_results(raws, case.measured_entries) for case in (first, second)]
    here, there = map(log_rates, sides)
    if not first.is_interleaved and here.keys() != there.keys():
        groups = [[each[0] for each in side.values()] for side in (here, there)]
        return over_groups(groups) if all(groups) else None
    logs = _differences(here, there)
    if not logs:
        return None
    blocks = [
        block
        for each in sides
        for result in each.values()
        for block in result["blocks"]
    ]
    are_discarded = [
        block["is_discarded"] for block in blocks if not block["is_sustained"]
    ]
    has_load = sum(are_discarded) > _MOST_DISCARDED * len(are_discarded)
    return over_rounds([*logs.values()])._replace(is_least=has_load)


def _differences(here: Logs, there: Logs) -> dict[Key, list[float]]:
    """Returns differences of the rounds that both have, by repetition with any."""
    differences = {
        key: [here[key][r] - there[key][r] for r in here[key] if r in there[key]]
        for key in sorted(here.keys() & there.keys())
    }
    return {key: logs for key, logs in differences.items() if logs}


def over_rounds(logs: Sequence[Sequence[float]]) -> Figure:
    """Returns a mean over repetitions; its interval is not narrower than its rounds."""
    means = [statistics.fmean(group) for group in logs]
    centre, number = statistics.fmean(means), len(logs)
    if number == 1:
        num_rounds = len(logs[0])
        num_batches = min(max(math.isqrt(num_rounds), 10), 30, num_rounds // 2)
        if num_batches < 2:  # noqa: PLR2004 - an interval needs two
            return Figure(centre, None, 1)
        means = [float(group.mean()) for group in np.array_split(logs[0], num_batches)]
    half = _half(statistics.variance(means) / len(means), len(means) - 1)
    if number > 1 and (degrees := sum(map(len, logs)) - number):
        within = (
            sum(statistics.pvariance(group) * len(group) for group in logs) / degrees
        )
        squares = within * sum(1 / len(group) for group in logs) / number**2
        half = max(half, _half(squares, degrees))
    return Figure(centre, half, number)


def over_groups(groups: Sequence[Sequence[float]]) -> Figure:
    """Returns the difference of two means that share no repetitions, by Welch's t."""
    first, second = map(statistics.fmean, groups)
    centre, n = first - second, min(map(len, groups))
    if n == 1:
        return Figure(centre, None, 1)
    squares = [statistics.variance(group) / len(group) for group in groups]
    shares = [
        part**2 / (len(group) - 1) for part, group in zip(squares, groups, strict=True)
    ]
    degrees = sum(squares) ** 2 / sum(shares) if any(shares) else 1.0
    return Figure(centre, _half(sum(squares), degrees), n)


def _half(squared_error: float, degrees: float) -> float:
    from scipy import stats

    return float(stats.t.isf(0.025, degrees)) * math.sqrt(squared_error)


def _loss_difference(study: Study, match: equivalence.Match, raws: Raws) -> float:
    planned = () if study.plan.equivalence is None else study.plan.equivalence.trials
    losses = []
    for trial_id, spec in ((each.trial_id, each.spec) for each in planned):
        is_same = spec.global_batch_size == match.global_batch_size
        own = match.backend, match.num_replicas
        is_own = own == (spec.backend, spec.num_replicas)
        if is_same and (is_own or spec.num_devices == 1):
            ranks = [rank["losses"] for rank in raws[trial_id].result["ranks"]]
            losses.append(
                [statistics.fmean(each) for each in zip(*ranks, strict=False)]
            )
    pairs = [*zip(*losses, strict=False)][: equivalence.NUM_STEPS]
    if len(pairs) < equivalence.NUM_STEPS:
        return math.inf
    return max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    kind: str  # The kind of figure.
    where: str  # File and field, or the figure in words.
    stated: str  # What the study says.
    recomputed: str  # What the raw observations say.


@dataclasses.dataclass(kw_only=True, slots=True)
class KindCount:
    """How many values of a kind were compared, of which some differ, or were not."""

    kind: str  # What they are.
    num_recomputed: int = 0
    num_different: int = 0
    num_missing: int = 0  # There are no raw observations: never taken for verified.


class Check:
    """What was compared, by kind, and what differs or could not be compared."""

    def __init__(self) -> None:
        self.differences: list[Mismatch] = []  # In the order in which they were found.
        self.missing: list[str] = []  # What could not be recomputed, one line each.
        self.kinds: dict[str, KindCount] = {}  # In the order in which they were met.

    def _of(self, kind: str) -> KindCount:
        return self.kinds.setdefault(kind, KindCount(kind=kind))

    def agree(self, kind: str) -> None:
        self._of(kind).num_recomputed += 1

    def differ(self, kind: str, where: str, stated: object, derived: object) -> None:
        self.agree(kind)
        self._of(kind).num_different += 1
        both = {"stated": str(stated), "recomputed": str(derived)}
        self.differences.append(Mismatch(kind=kind, where=where, **both))

    def lack(self, kind: str, reason: str) -> None:
        self._of(kind).num_missing += 1
        self.missing.append(reason)

    def compare(
        self, kind: str, where: str, stated: Any, derived: Any, tolerance: float = 0.0
    ) -> None:
        """Compares two values: equal, or numbers within a relative tolerance."""
        if _is_close(stated, derived, tolerance):
            self.agree(kind)
        else:
            self.differ(kind, where, repr(stated), repr(derived))

    def num_recomputed(self, *kinds: str) -> int:
        """Returns how many values were compared, of these kinds or of all."""
        chosen = self.kinds.keys() & kinds if kinds else self.kinds
        return sum(self.kinds[kind].num_recomputed for kind in chosen)


def _is_close(stated: Any, derived: Any, tolerance: float) -> bool:
    if isinstance(stated, tuple) and isinstance(derived, tuple):
        both = zip(stated, derived, strict=False)
        is_close = all(_is_close(one, other, tolerance) for one, other in both)
        return is_close and len(stated) == len(derived)
    if isinstance(stated, bool) or isinstance(derived, bool):
        return stated is derived
    if isinstance(stated, (int, float)) and isinstance(derived, (int, float)):
        return math.isclose(stated, derived, rel_tol=tolerance, abs_tol=0.0)
    return bool(stated == derived)


def verify_study(store: Store) -> Check:
    """Recomputes records and headline figures of a study by other code.

    ``differences`` has what raw observations contradict, ``missing`` what has none; a
    study with both empty is verified. Only the subcommand ``verify`` compares files,
    gate and page too. Raises ResultsError for a study that cannot be read.
    """
    study, check = load_study(store), Check()
    for problem in study.problems:
        check.differ("records", problem.label, "readable", problem.reason)
    entries = [entry for entry in study.entries if entry.state != CORRUPT]
    raws = trials.compare(store, entries, check)
    entries = equivalence_entries(store.equivalence)
    matched = trials.compare(store.equivalence, entries, check)
    compare_headlines(study, raws, matched, check)
    return check


FILES: Final = "files"
_OLD_SEAL: Final = "seal.jsonl"
NOT_COVERED: Final = (
    "that the machine did what was recorded, and a study whose records and whose"
    f" {MANIFEST_NAME} were both made anew: whoever measures can record anything"
)
NOT_LISTED: Final = (
    "trials that were removed, and machine, commit, command, load and pictures that"
    f" were changed: {{}} of {{}} finished trials are not in {MANIFEST_NAME}"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """Finished trials whose files the manifest has, and trials of earlier versions."""

    num_listed: int
    num_unlisted: int

    @property
    def not_covered(self) -> tuple[str, ...]:
        total = self.num_listed + self.num_unlisted
        not_listed = (NOT_LISTED.format(self.num_unlisted, total),)
        return *not_listed * bool(self.num_unlisted), NOT_COVERED


def compare_files(store: Store, check: Check) -> Covered:
    """Compares every listed file, and finds what is missing, added or exchanged."""
    finished = {
        f"{folder}/{name}"
        for folder in (TRIALS_NAME, f"{EQUIVALENCE_NAME}/{TRIALS_NAME}")
        for name in untrusted.names_in(store.root / folder)
        if "status.json" in untrusted.names_in(store.root / folder / name)
    }
    marked = _compare_marks(store, sorted(finished), check)
    if _OLD_SEAL in untrusted.names_in(store.root):
        marked = set()
    listed = read_manifest(store.root, check)
    if listed is None:
        if marked and not untrusted.is_there(store.root / MANIFEST_NAME):
            check.differ(FILES, MANIFEST_NAME, "digests of all files", "not there")
        return Covered(num_listed=0, num_unlisted=len(finished))
    left_out = set(_to_be_measured_again(store, listed, check))
    unlisted = finished - {path.rpartition("/")[0] for path in listed.sums}
    for trial_folder in sorted(unlisted & marked):
        check.differ(
            FILES,
            trial_folder,
            f"in {MANIFEST_NAME}",
            "not listed, though it has ended",
        )
    present = dict(_present(store, finished))
    for path in sorted({*listed.sums, *present}):
        if path.rpartition("/")[0] not in left_out | unlisted:
            compare_digest(path, present.get(path, NOTHING), listed, check)
    return Covered(num_listed=len(finished - unlisted), num_unlisted=len(unlisted))


def read_manifest(root: pathlib.Path, check: Check) -> Listed | None:
    """Returns what is listed; None where that cannot be read, or there is nothing."""
    try:
        return manifest.read(root)
    except untrusted.DamagedFileError as error:
        check.differ(FILES, MANIFEST_NAME, "a manifest", str(error))
        return None


def compare_digest(path: str, own: str, listed: Listed, check: Check) -> None:
    """Compares the digest of a file with what is listed, or was before a kill."""
    stated = listed.sums.get(path, "not there")
    if own not in (stated, listed.before.get(path)):
        check.differ(FILES, path, stated, "not there" if own == NOTHING else own)


def _evidence(store: Store, folder: str) -> list[str]:
    names = sorted(untrusted.names_in(store.root / folder))
    return [f"{folder}/{name}" for name in filter(manifest.EVIDENCE.fullmatch, names)]


def _present(store: Store, finished: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields path and digest of what is there and would be listed."""
    kept = (
        folder.relative_to(store.root).as_posix()
        for root in (store.root, store.equivalence.root)
        for folder in study_store.attempts(root)
    )
    paths = [path for each in (*finished, *kept) for path in _evidence(store, each)]
    top = untrusted.names_in(store.root) & {PLAN_NAME, GATE_NAME}
    for path in (*paths, *top):
        own = "unreadable"
        with contextlib.suppress(untrusted.DamagedFileError):
            own = manifest.digest_of(store.root / path)
        yield path, own


def _to_be_measured_again(store: Store, listed: Listed, check: Check) -> Iterator[str]:
    """Yields trials that ended and are not there, and says why."""
    again = "run the same command again"
    for path in listed.sums:
        folder, _, name = path.rpartition("/")
        if name != "status.json" or folder.startswith(study_store.EARLIER_NAME):
            continue
        if untrusted.is_there(store.root / path):
            continue
        if listed.before.get(path) == NOTHING:
            check.lack(FILES, f"{folder} was stopped as it ended; {again}")
        elif _is_kept_aside(store.root / folder, folder, listed):
            check.lack(
                FILES,
                f"{folder} was to be measured again, and is not yet: what it had"
                f" measured is in {study_store.EARLIER_NAME}/; {again}",
            )
        else:
            check.differ(FILES, folder, "listed when it had ended", "it is not there")
        yield folder


def _is_kept_aside(trial_dir: pathlib.Path, owner: str, listed_files: Listed) -> bool:
    """Whether an earlier attempt at a trial has what is listed of the trial."""
    listed = {
        p.rpartition("/")[2]: d
        for p, d in listed_files.sums.items()
        if p.startswith(owner)
    }
    # A kill as it ended leaves no status.
    ended = (listed, {k: v for k, v in listed.items() if k != "status.json"})
    for folder in study_store.attempts(trial_dir.parent.parent, trial_dir.name):
        with contextlib.suppress(untrusted.DamagedFileError):
            if manifest.evidence_in(folder) in ended:
                return True
    return False


def _compare_marks(store: Store, finished: Iterable[str], check: Check) -> set[str]:
    """Returns trials whose observations say whose they are, each with its nonce."""
    marked = set()
    nonces: dict[str, str] = {}
    for folder in finished:
        trial_id = folder.rpartition("/")[2]
        for where in _evidence(store, folder):
            if not where.startswith(f"{folder}/rank_"):
                continue
            try:
                content = untrusted.read_bytes(store.root / where) or b""
                mark = untrusted.parsed(content.partition(b"\n")[0])
                own, nonce = mark["trial_id"], str(mark["nonce"])
            except (ValueError, LookupError, TypeError):
                continue  # of an earlier version, or compared as a file
            marked.add(folder)
            if own != trial_id:
                check.differ(FILES, where, trial_id, f"observations of {own}")
            if nonce in nonces:
                check.differ(FILES, where, "observed once", f"as {nonces[nonce]}")
            nonces[nonce] = where
    return marked
