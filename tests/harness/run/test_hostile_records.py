"""Studies that are damaged or hostile: reported in lines, in seconds.

Records are damaged as JSON and as bytes; other files that the harness reads have
``tests/harness/hostile/test_damaged_files.py``.
"""

import contextlib
import io
import json
import logging
import os
import random
import shutil
import time
import warnings

import covering
import damaged
import drawn
import pytest
from hung import at_most
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.cli import exit_codes
from harness.cli import main as cli
from harness.run import trial_tree
from reports.charts import svg
from results.records import identity
from results.records.models import TrialSpec

DRAWN_HERE = "24" if covering.is_full() else "6"
NUM_CASES = int(os.environ.get("HOSTILE_RECORDS", DRAWN_HERE))
LONGEST_SEC = 30.0
NOTES = ("error: ", "left out: ", "report: ", "note: ")
CODES = {
    exit_codes.INCONCLUSIVE,
    exit_codes.OK,
    exit_codes.USAGE,
    exit_codes.SOME_TRIALS_FAILED,
    exit_codes.NOTHING_MEASURED,
}
READERS = (
    ("verify", "damaged"),
    ("list", "studies"),
    ("report", "damaged", "--format", "zip", "-o", "written.zip"),
)
"""Other readers of a study, of which each case has one."""
MANY_DIGITS = int("9" * 4000)

NUMBERS = (
    *(0, -0.0, -1, 1, 2, 3, 0.5, 1e-9, 1e-300, 5e-324, 1e300, 1.7e308, 1e100, -1e100),
    *(float("nan"), float("inf"), float("-inf"), True, False, 2**31, 2**53 + 1, 2**63),
    *(-(2**63), 10**18, 10**19, MANY_DIGITS, -MANY_DIGITS, 65536, 65537, 10**6, 10**9),
)
TEXTS = (
    *("", " ", "\0", "a\0b", "\ud800", "x\udfffy", "a\nb", "\x1b[31mred", "\u2028"),
    *("\N{RIGHT-TO-LEFT OVERRIDE}abc", "\N{PILE OF POO}" * 9, "\u4e2d\u6587"),
    *("a" * 200, "a" * 201, "a" * 10_000, "$\\frac{1}{", "$x$ and $y$", "[/red]"),
    *("<script>", "&lt;", "../../x", "/etc/passwd", "..", ".", "#010203"),
    *("{{ 7 * 7 }}", "%s", "nan", "1e999", "ok", "failed", "weak", "in_graph"),
    *("0" * 20, "f" * 20, "\u0627\u0644", "a; b; c"),
)
NESTED = (None, [], {}, [[]], [{}], {"": None}, [None], [0] * 5000, {"a": {"b": []}})
values = st.sampled_from((*NUMBERS, *TEXTS, *NESTED)) | st.text(max_size=8)
chances = st.integers(0, 2**40)


def pick(value, chance):
    """Returns the path of a part of a JSON value, a list as likely as a number."""
    path = []
    while value and isinstance(value, dict | list):
        chance, place = divmod(chance, len(value))
        path.append(sorted(value)[place] if isinstance(value, dict) else place)
        value = value[path[-1]]
        chance, is_end = divmod(chance, 3)
        if not is_end:
            break
    return tuple(path)


def like(value, path, chance, new):
    for key in path:
        value = value[key]
    if chance % 4 == 0:
        return new
    if isinstance(value, int | float):
        return NUMBERS[chance // 4 % len(NUMBERS)]
    return TEXTS[chance // 4 % len(TEXTS)] if isinstance(value, str) else new


def change(value, path, how, new):
    """Returns a JSON value with one node set, removed, doubled, renamed or emptied."""
    if not path:
        return new
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    if how == "set":
        parent[key] = new
    elif how == "remove":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.append(parent[key])
    elif how == "rename" and isinstance(parent, dict):
        parent[str(new)] = parent.pop(key)
    elif isinstance(parent[key], list):
        parent[key] = []
    return value


def load(path):
    """Returns what a plain file of a usual size holds; a pipe would not end."""
    if not path.is_file() or path.stat().st_size > 2**24:
        raise OSError(f"{path} was damaged before")
    return json.loads(path.read_text())


def rename(root, name, spec):
    """Gives the trial ``name`` another spec, and the ids that follow, everywhere."""
    try:
        ids = identity.ids(TrialSpec.model_validate(spec))
    except ValueError:
        ids = name, name
    plan = load(root / "plan.json")
    for trial in plan["trials"]:
        if trial["trial_id"] == name:
            trial |= {"trial_id": ids[0], "case_id": ids[1], "spec": spec}
    (root / "plan.json").write_text(json.dumps(plan))
    folder = root / "trials" / name
    (folder / "spec.json").write_text(json.dumps(spec))
    for path in (folder / "status.json", folder / "result.json"):
        if path.exists():
            fields = load(path)
            path.write_text(json.dumps({**fields, "trial_id": ids[0]}))
    if ids[0] != name:
        folder.rename(root / "trials" / ids[0])


KINDS = (
    *("set", "set", "set", "set", "remove", "double", "rename", "empty"),
    *("spec", "spec", "bytes", "bytes", "place", "version"),
)
damages = st.lists(
    st.tuples(st.sampled_from(KINDS), chances, chances, values), min_size=1, max_size=3
)
"""What is damaged in a study directory, in one to three places."""


def damage(root, kind, first, second, new):
    files = sorted(
        p for p in root.rglob("*.json") if p.is_file() and p.stat().st_size < 2**24
    )
    if not files:
        return
    # Half of them to results and the plan, which most is computed from.
    rich = [p for p in files if p.name in ("result.json", "plan.json")]
    path = (rich if first % 2 and rich else files)[first // 2 % len(rich or files)]
    if kind == "place":
        others = [path, path.parent, root / "report", root / ".lock", root / "trials"]
        what = damaged.PLACES[first % len(damaged.PLACES)]
        damaged.put(others[max(0, second % 9 - 4)], what)
        return
    if kind == "bytes":
        damaged.damage(path, random.Random(first))
        return
    with contextlib.suppress(
        ValueError, LookupError, TypeError, OSError, RecursionError
    ):
        value = load(path)
        if kind == "version":
            value["schema_version"] = (1, 2, 7, 0, True, MANY_DIGITS)[second % 6]
        elif kind == "spec":
            folder = sorted((root / "trials").iterdir())[first % 2]
            spec = load(folder / "spec.json")
            place = pick(spec, second)
            new = like(spec, place, first, new)
            rename(root, folder.name, change(spec, place, "set", new))
            return
        else:
            place = pick(value, second)
            new = like(value, place, first // 7, new)
            value = change(value, place, kind, new)
        path.write_text(json.dumps(value))


class Logged(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


DRAWN = {}


def once(draw):
    """Draws figures that are the same in thousands of cases only once."""

    def drawing(*args, **kwargs):
        # Functions write what is described; what they draw is in a partial.
        shown = [getattr(arg, "keywords", arg) for arg in args]
        named = {k: v for k, v in kwargs.items() if not callable(v)}
        key = f"{draw.__module__} {shown!r} {named!r}"
        if key not in DRAWN:
            DRAWN[key] = draw(*args, **kwargs)
        return DRAWN[key]

    return drawing


def run(*arguments):
    """Runs a verb and checks what holds of any: no fault, no warning, soon."""
    out, err, logged = io.StringIO(), io.StringIO(), Logged()
    fake = trial_tree.TrialExit(
        exit_code=1, is_timed_out=False, timeout_sec=1, duration_sec=0, num_oom_kills=0
    )
    start = time.monotonic()
    logging.getLogger("matplotlib").addHandler(logged)
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("always")
        # No process of a trial starts; the code is that of whoever made the study.
        patch.setattr(trial_tree, "run_tree", lambda *_, **__: fake)
        patch.setattr("harness.planning.plan.check_code", lambda _: None)
        patch.setattr(svg, "draw", once(svg.draw))
        with at_most(2 * LONGEST_SEC):
            code = cli.main(arguments, run_overrides={"canary": lambda _: 0.2})
    logging.getLogger("matplotlib").removeHandler(logged)
    logged.lines += [str(warning.message) for warning in warned]

    assert "Traceback" not in err.getvalue(), err.getvalue()
    assert code in CODES, err.getvalue()
    assert logged.lines == []
    assert time.monotonic() - start < LONGEST_SEC
    return code, out.getvalue(), err.getvalue()


def check(root, reader):
    """Runs verbs over a study, and checks that what is wrong is named in lines."""
    verbs = (("status",), ("status", "--json"), ("report", "--json"))
    for arguments in (reader, *((*verb, root.name) for verb in verbs)):
        code, out, err = run(*arguments, "--runs-dir=.")
        if code == exit_codes.USAGE:
            lines = err.splitlines()
            assert lines, arguments
            assert all(line.startswith(NOTES) for line in lines), err
            # A report names the damaged record, and shows the others.
            is_shown = arguments[0] == "report" and "error: corrupt record " in err
            assert is_shown or not root.with_name("written.zip").exists(), arguments
        elif "--json" in arguments:
            json.loads(out, parse_constant=pytest.fail)
    with pytest.MonkeyPatch.context() as patch:
        # Just built, and of what is resumed nothing ends well.
        patch.setattr("reports.page.build.write_report", lambda *_, **__: None)
        run("sweep", "--study", root.name, "--runs-dir=.", "--retry=failed")


@drawn.series
@settings(
    max_examples=NUM_CASES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(version=st.sampled_from((5, 4)), places=damages, reader=st.sampled_from(READERS))
def test_damaged_studies_are_reported_in_lines(
    old_and_new_studies, version, places, reader
):
    """Bytes, keys, types, values and files, of all versions, by each reading verb."""
    root = old_and_new_studies[version].with_name("damaged")
    shutil.rmtree(root, ignore_errors=True)
    root.with_name("written.zip").unlink(missing_ok=True)
    shutil.copytree(old_and_new_studies[version], root)
    for kind, *what in places:
        damage(root, kind, *what)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root.parent)
        check(root, reader)
