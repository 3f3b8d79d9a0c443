"""``verify`` recomputes a study, and finds what was changed or says what it omits."""

import hashlib
import json
import random
import re
import shutil
import subprocess

import covering
import pytest
from fake_machine import BUSY, QUIET

from harness import ExitCode, main
from reports import write_report
from results import Store, load_study

pytestmark = pytest.mark.processes

OPTIONS = (
    *("--workload=resnet50", "--preset=smoke", "--replicas=1,2", "--mode=weak"),
    "--no-match",
)
INTERLEAVED = (*OPTIONS, "--order=interleaved", "--budget=none")
SWEEPS = {
    "sequential": (*OPTIONS, "--order=sequential", "--repeats=2", "--budget=8steps"),
    "relay": (*INTERLEAVED, "--repeats=2", "--set=rounds=3"),
    "one": (*INTERLEAVED, "--repeats=1", "--set=rounds=8"),
}
NUMBER = re.compile(r"(?<=[\s:\[,])-?\d[\d.]*(?:e-?\d+)?(?=[\s,\]}\n])")
NUM_MUTATIONS = 40 if covering.is_full() else 12
NUM_DIGITS = 11  # and the point


@pytest.fixture(scope="module")
def studies(tmp_path_factory, overrides, quick_sweeps):
    root = tmp_path_factory.mktemp("verified")
    number = iter(range(10**6))
    # Every seventh block is discarded.
    load = {"load": lambda _before, _after: QUIET if next(number) % 7 else BUSY}
    with quick_sweeps(root):
        for name, options in SWEEPS.items():
            words = ("sweep", *options, f"--study={name}")
            assert ExitCode.OK == main(words, run_overrides=overrides | load)
    # The fake worker draws no pictures.
    store = Store(root / "runs" / "sequential")
    first = min(store.trial_ids())
    (store.trial_dir(first) / "samples_00000008.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    store.list_trial(first)
    return root / "runs"


@pytest.fixture
def study(studies, tmp_path, request):
    name = getattr(request, "param", "sequential")
    shutil.copytree(studies / name, tmp_path / "runs" / "s")
    return tmp_path / "runs" / "s"


NOT_COVERED = (
    "that the machine did what was recorded, and a study whose records and whose"
    " SHA256SUMS were both made anew: whoever measures can record anything"
)
each_design = pytest.mark.parametrize("study", SWEEPS, indirect=True)
one_design = pytest.mark.parametrize("study", ["relay"], indirect=True)


@pytest.fixture
def verified(harness):
    def run():
        code, out, err = harness("verify", "s", "--json")
        if code == ExitCode.USAGE:
            return code, {"differences": [err]}
        assert not err, err
        return code, json.loads(out)

    return run


def unlist(root):
    """Removes digests, as an earlier version had none: the figures are left."""
    (root / "SHA256SUMS").unlink()
    for path in root.rglob("rank_*.jsonl"):
        path.write_text(path.read_text().partition("\n")[2])


def kinds(found):
    names = ("num_recomputed", "num_different", "num_missing")
    return {kind["kind"]: tuple(map(kind.get, names)) for kind in found["kinds"]}


RECORDS = {"trials", "records"}


@each_design
def test_a_study_is_verified(study, harness, verified):
    unlist(study)
    code, found = verified()
    counts = kinds(found)
    _, out, _ = harness("verify", "s")

    assert ExitCode.OK == code
    assert [] == found["differences"] == found["missing"]
    ratios = {"throughput", "speedup", "efficiency", "ratios of backends"}
    number = sum(of[0] for kind, of in counts.items() if kind not in RECORDS)
    assert f"\nverified: {number} headline figures are as recomputed\n" in out
    assert ratios | RECORDS < set(counts)
    assert not re.search("^ *page ", out, re.MULTILINE)
    assert all(of[1:] == (0, 0) for of in counts.values())
    assert 10 < sum(of[0] for of in counts.values())
    is_trained = Store(study).read_plan().trials[-1].spec.budget is not None
    assert is_trained == ("quality" in counts)


def numbers_of(path):
    """Yields the text of a record, and where each of its numbers begins and ends."""
    text = path.read_text()
    for match in NUMBER.finditer(text):
        line = text[: match.start()].rpartition("\n")[2]
        is_read = path.suffix == ".json" or path.name == "blocks.jsonl"
        is_read |= '"kind": "step"' in line or '"kind": "turn"' in line
        # What can be rounding is no figure: it only decides which blocks are discarded.
        if is_read and not text[: match.start()].endswith('_resolution": '):
            yield text, match.start(), match.end()


def with_another_digit(number, generator):
    """Changes one of the first digits; sums are compared to twelve."""
    places = [i for i, sign in enumerate(number.partition("e")[0]) if sign.isdigit()]
    zeros = len(number) - len(number.lstrip("-0."))
    places = [place for place in places if place < zeros + NUM_DIGITS]
    place = generator.choice(places)
    other = generator.choice(sorted(set("123456789") - {number[place]}))
    return number[:place] + other + number[place + 1 :]


@each_design
@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", ["result.json", "rank_0.jsonl", "blocks.jsonl"])
def test_every_changed_digit_is_found(study, name, verified):
    unlist(study)
    generator = random.Random(f"{study.name}/{name}")
    paths = sorted(study.glob(f"trials/*/{name}"))
    if not paths:
        assert name == "blocks.jsonl"  # of trials in sequence
        return
    # One trial is enough: the others only make reading slow.
    path = generator.choice(paths)
    numbers = list(numbers_of(path))
    missed = []
    for text, start, end in generator.sample(numbers, min(NUM_MUTATIONS, len(numbers))):
        changed = with_another_digit(text[start:end], generator)
        path.write_text(text[:start] + changed + text[end:])
        if not verified()[1]["differences"]:
            missed.append(f"{text[start - 40 : end]} -> {changed}")
        path.write_text(text)

    assert not missed


@one_design
def test_a_difference_is_named_and_has_its_exit_code(study, harness):
    path = min(study.glob("trials/*/result.json"))
    fields = json.loads(path.read_text())
    before = fields["ranks"][0]["step_time_sec"][1]
    fields["ranks"][0]["step_time_sec"][1] = before * 2
    path.write_text(json.dumps(fields))
    code, out, _ = harness("verify", "s")

    assert ExitCode.SOME_TRIALS_FAILED == code
    assert (
        f"differs: trials/{path.parent.name}/result.json ranks[0].step_time_sec[1]:"
        f" stated {before * 2!r}, recomputed {before!r}"
    ) in out
    assert re.search(r"^not verified: [\d,]+ values? differs?$", out, re.MULTILINE)


@one_design
def test_missing_raw_files_are_never_counted_as_verified(study, harness, verified):
    unlist(study)
    case = next(
        of for of in load_study(Store(study)).cases if of.spec.num_replicas == 2
    )
    name = case.ok_entries[0].trial_id
    whole = kinds(verified()[1])
    (study / "trials" / name / "rank_0.jsonl").unlink()
    code, found = verified()
    counts = kinds(found)
    _, out, _ = harness("verify", "s")

    assert ExitCode.SOME_TRIALS_FAILED == code
    assert f"not verified: trials/{name}: no rank_0.jsonl" in out
    named = f"trial {name} has no raw observations"
    assert 3 <= sum(named in reason for reason in found["missing"])
    assert "partly verified: " in out
    assert (whole["trials"][0] - 1, 0, 1) == counts["trials"]
    assert 0 == sum(of[1] for of in counts.values())

    for path in study.rglob("rank_*.jsonl"):
        path.unlink()
    code, out, _ = harness("verify", "s")
    assert ExitCode.NOTHING_MEASURED == code
    assert "\nnothing verified: there are no raw observations\n" in out
    assert 0 == sum(of[0] for of in kinds(verified()[1]).values())


def timed(root):
    """Returns the folders of trials that do not train."""
    trials = Store(root).read_plan().trials
    return [root / "trials" / of.trial_id for of in trials if of.spec.budget is None]


def change(path, edit):
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record, indent=1) + "\n")


def swap(root, names):
    """Exchanges files of the trials of two backends, with the ids that they have."""
    trials = Store(root).read_plan().trials
    one, other = (
        root / "trials" / of.trial_id
        for of in trials
        if of.spec.budget is None
        and (of.spec.num_replicas, of.spec.repetition_index) == (2, 0)
    )
    for name in names:
        texts = [(folder / name).read_text() for folder in (one, other)]
        (one / name).write_text(texts[1].replace(other.name, one.name))
        (other / name).write_text(texts[0].replace(one.name, other.name))


def faster(root):
    path = timed(root)[0] / "rank_0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for fields in lines:
        for name in {"start_ns", "end_ns", "ns"} & fields.keys():
            fields[name] //= 2
    path.write_text("".join(json.dumps(fields) + "\n" for fields in lines))


def set_in(name, **fields):
    def run(root):
        def edit(record):
            assert set(fields) <= set(record), record
            record.update(fields)

        change(timed(root)[0] / name, edit)

    return run


def edit_manifest(edit):
    def run(root):
        path = root / "SHA256SUMS"
        lines = edit(path.read_bytes().splitlines(keepends=True), root)
        path.write_bytes(b"".join(lines))

    return run


def exchange_digests(lines, _):
    first, second = lines[1], lines[2]
    return [lines[0], first[:64] + second[64:], second[:64] + first[64:], *lines[3:]]


def without_a_trial(lines, root):
    return [line for line in lines if timed(root)[0].name.encode() not in line]


LOST = {"phase": "measure", "reason": "lost"}
TAMPERINGS = {
    "a trial's folder is removed": lambda root: shutil.rmtree(timed(root)[0]),
    "two backends: all numbers exchanged": lambda root: swap(
        root, ("result.json", "rank_0.jsonl", "status.json", "env.json")
    ),
    "step times halved": faster,
    "a trial becomes a failure": set_in("status.json", status="failed", failure=LOST),
    "a trial is added": lambda root: shutil.copytree(
        timed(root)[0], root / "trials" / ("0" * 20)
    ),
    "a picture is added": lambda root: (
        timed(root)[-1] / "samples_00000009.png"
    ).write_bytes(b"x"),
    "the manifest is removed": lambda root: (root / "SHA256SUMS").unlink(),
    "a trial's lines are removed": edit_manifest(without_a_trial),
    "two digests are exchanged": edit_manifest(exchange_digests),
    "the manifest is cut": edit_manifest(
        lambda lines, _: [*lines[:-1], lines[-1][:70]]
    ),
    "an earlier attempt is added": lambda root: shutil.copytree(
        timed(root)[0], root / "earlier" / f"{timed(root)[0].name}-1"
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_tampering_is_found(study, harness, name):
    """Exit code 4, or 2 where the records contradict themselves; never 0."""
    TAMPERINGS[name](study)
    code, out, err = harness("verify", "s")

    assert code in (ExitCode.SOME_TRIALS_FAILED, ExitCode.USAGE), (out, err)
    assert re.search("^differs: |^error: ", out + err, re.MULTILINE)


FILES = ("spec.json", "env.json", "status.json", "result.json", "rank_0.jsonl", "*.png")


@pytest.mark.parametrize("pattern", ["plan.json", *(f"trials/*/{of}" for of in FILES)])
def test_every_changed_file_is_found(study, verified, pattern):
    path, *others = sorted(study.glob(pattern))
    content = path.read_bytes()
    contents = [content + b"x", None, *(other.read_bytes() for other in others[:1])]
    digits = [match.start() for match in re.finditer(rb"\d", content)]
    for place in random.Random(pattern).sample(digits, min(5, len(digits))):
        other = b"%d" % ((content[place] - 47) % 10)
        contents.append(content[:place] + other + content[place + 1 :])
    for changed in contents:
        path.write_bytes(changed or b"")
        if changed is None:
            path.unlink()
        code, found = verified()

        assert code in (ExitCode.SOME_TRIALS_FAILED, ExitCode.USAGE), changed
        assert found["differences"] or found["missing"]


def with_another_rate(page):
    start = page.index("images/s") - 3
    while not page[start].isdigit():
        start -= 1
    return page[:start] + ("1" if page[start] != "1" else "2") + page[start + 1 :]


PAGES = {
    "a figure": with_another_rate,
    "a sentence is added": lambda page: page.replace("</p>", " All is well.</p>", 1),
    "a link leads elsewhere": lambda page: page.replace('href="#', 'href="#x', 1),
    "blank space": lambda page: page + "\n",
}


@one_design
def test_an_untouched_study_is_listed_and_any_change_of_its_page_is_found(
    study, harness, verified, show_page
):
    page = write_report(Store(study))
    code, out, _ = harness("verify", "s")
    sums = (study / "SHA256SUMS").read_text()
    paths = {line.partition("  ")[2] for line in sums.splitlines() if line[0] != "#"}
    num_trials = len(Store(study).read_plan().trials)

    assert ExitCode.OK == code, out
    assert re.search("^ *page +1 +0 +0 *$", out, re.MULTILINE)
    assert f"\nSHA256SUMS: the files of {num_trials} trials\n" in out
    assert f"not covered: {NOT_COVERED}" == out.splitlines()[-1]
    names = ("spec", "env", "result", "status")
    files = {f"trials/{of.name}/{name}.json" for of in timed(study) for name in names}
    assert files | {"plan.json"} < paths
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    assert not subprocess.run(
        command, cwd=study, check=True, capture_output=True
    ).stdout

    text = page.read_text()
    show_page(text)
    for name, edit in PAGES.items():
        page.write_text(edit(text))
        code, found = verified()
        assert ExitCode.SOME_TRIALS_FAILED == code, name
        assert ["page"] == [item["kind"] for item in found["differences"]], name
    _, out, _ = harness("verify", "s")
    assert "differs: report/index.html line " in out
    assert "made by another version, or changed; make it again with 'report'" in out


def test_a_kill_between_a_file_and_its_digest_is_understood(study, verified):
    """A status or plan of before, or of after, is no tampering."""
    folder, plan = timed(study)[0], study / "plan.json"
    status = folder / "status.json"
    text = status.read_bytes()
    status.unlink()
    digest = hashlib.sha256(text).hexdigest()
    Store(study).list_trial(folder.name, {"status.json": digest})
    code, found = verified()
    assert ExitCode.SOME_TRIALS_FAILED == code
    assert [
        f"trials/{folder.name} was stopped as it ended; run the same command again"
    ] == found["missing"]
    status.write_bytes(text)
    assert ExitCode.OK == verified()[0]

    for is_written in (True, False):
        changed = plan.read_bytes() + b"\n"
        Store(study).list_file("plan.json", changed)
        assert ExitCode.OK == verified()[0]
        if is_written:
            plan.write_bytes(changed)
        assert ExitCode.OK == verified()[0]
        Store(study).list_trial(folder.name)
        assert ExitCode.OK == verified()[0]
    plan.write_bytes(plan.read_bytes() + b"\n")
    assert ExitCode.SOME_TRIALS_FAILED == verified()[0]


@pytest.mark.parametrize("has_seal", [False, True])
def test_a_study_of_an_earlier_version_is_not_listed(study, verified, has_seal):
    if has_seal:
        (study / "SHA256SUMS").unlink()
        (study / "seal.jsonl").write_text("of an earlier version\n")
    else:
        unlist(study)
    code, found = verified()
    num_trials = len(Store(study).read_plan().trials)

    assert ExitCode.OK == code
    counts = found["manifest"]["num_listed"], found["manifest"]["num_unlisted"]
    assert (0, num_trials) == counts
    not_listed = f"{num_trials} of {num_trials} finished trials are not in SHA256SUMS"
    assert found["not_covered"][0].endswith(not_listed)
