"""What a page, an export or the terminal says of a gate is evidence, or not shown."""

import functools
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from command_lines import GATE

from harness import ExitCode
from results import Store

pytestmark = pytest.mark.processes


@pytest.fixture
def study(tmp_path, stored):
    return tmp_path / "runs" / stored


def shown(harness, study, *forms):
    found = {}
    for form in forms or ("html", "json"):
        code, _, err = harness("report", study, f"--format={form}", "-o", "shown.out")
        assert ExitCode.OK == code, err
        found[form] = Path("shown.out").read_text(encoding="utf-8")
    return found


def places(value, place=()):
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*place, key))
    else:
        yield place


def value_at(value, place):
    return functools.reduce(lambda inner, key: inner[key], place, value)


def forged(value, chance):
    if isinstance(value, bool) or value is None:
        return not value if value is not None else 0.5
    if isinstance(value, int):
        return value + chance.randint(1, 3)
    if isinstance(value, float):
        return value * chance.uniform(0.3, 0.9) + 0.01
    return {"pass": "regress", "regress": "pass"}.get(value, f"{value}x")


def test_no_forged_fact_of_a_gate_is_shown(study, harness):
    path, chance = study / "gate.json", random.Random(16)
    text = path.read_text()
    whole = shown(harness, "stored")
    assert ExitCode.OK == harness("verify", "stored")[0]
    by_path = {
        tuple(key for key in of if isinstance(key, str)): of
        for of in places(json.loads(text))
        if of != ("schema_version",)
    }
    fields = {path[-1] for path in by_path}
    wanted = {"verdict", "low", "high", "n", "name", "exit_code", "metric", "delta"}
    assert {*wanted, "alpha", "headline", "slowdown", "baseline"} <= fields
    path.write_text(text + " ")  # the manifest alone
    code, out, _ = harness("verify", "stored", "--json")
    assert ExitCode.SOME_TRIALS_FAILED == code
    assert "gate.json" in {of["where"] for of in json.loads(out)["differences"]}
    # What has no value is forged alone: then a record may not be one.
    alone = {of: value_at(json.loads(text), of) is None for of in by_path.values()}
    together = [of for of, is_alone in alone.items() if not is_alone]
    for forgeries in (together, *([of] for of in alone if alone[of])):
        record = json.loads(text)
        for *outer, key in forgeries:
            inner = value_at(record, outer)
            inner[key] = forged(inner[key], chance)
        path.write_text(json.dumps(record))
        Store(study).list_file(path.name)
        code, out, err = harness("verify", "stored", "--json")
        assert ExitCode.SOME_TRIALS_FAILED == code, (forgeries, err)
        where = {of["where"] for of in json.loads(out)["differences"]}
        for place in forgeries:
            keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)
            is_named = f"gate.json {''.join(keys)[1:]}" in where
            assert is_named or (alone[place] and "gate.json" in where), place
        if forgeries is together:
            assert whole == shown(harness, "stored")


def test_the_records_of_a_page_have_the_verdict(study, tmp_path, harness):
    whole = shown(harness, "stored", "text")
    zipped = ("report", "stored", "--format=zip", "-o", "records.zip")
    assert ExitCode.OK == harness(*zipped)[0]
    assert ExitCode.OK == harness("verify", "records.zip")[0]
    shutil.unpack_archive("records.zip", "copy")
    copy = tmp_path / "copy" / "stored"
    assert (study / "gate.json").read_bytes() == (copy / "gate.json").read_bytes()
    assert whole == shown(harness, str(copy), "text")
    (copy / "gate.json").unlink()
    code, out, _ = harness("verify", str(copy))
    assert ExitCode.SOME_TRIALS_FAILED == code
    assert "differs: gate.json: " in out
    assert whole == shown(harness, str(copy), "text")


def test_a_gate_that_was_stopped_at_once_is_verified(study, harness):
    plan = json.loads((study / "plan.json").read_text())
    kept = [of["trial_id"] for of in plan["trials"][:2]]
    (study / "gate.json").unlink()
    for trial in plan["trials"]:
        if trial["trial_id"] not in kept:
            shutil.rmtree(study / "trials" / trial["trial_id"])
    (study / "SHA256SUMS").unlink()
    Store(study).list_file("plan.json")
    for name in kept:
        Store(study).list_trial(name)
    code, out, err = harness("verify", "stored")
    assert ExitCode.OK == code, out + err
    assert "it has not concluded" in shown(harness, "stored", "html")["html"]


@pytest.mark.parametrize(
    ("metric", "order"), [("peak_memory", "sequential"), ("efficiency", "relay")]
)
def test_a_gate_on_any_metric_is_verified(gate, harness, metric, order):
    replicas = "--replicas=1,2" if metric == "efficiency" else "--replicas=1"
    options = (replicas, f"--metric={metric}", f"--order={order}", "--repeats=2")
    rounds = ["--set=rounds=2"] * (order == "relay")
    code, _, err = gate("--baseline=slower", "--study=m", *options, *rounds, of=GATE)
    assert code in (ExitCode.OK, ExitCode.INCONCLUSIVE, ExitCode.REGRESSION), err
    code, out, err = harness("verify", "m", "--json")
    kinds = {of["kind"]: of for of in json.loads(out)["kinds"]}
    assert ExitCode.OK == code, out + err
    assert kinds["verdict"]["num_recomputed"] >= 2
    assert kinds["record of the gate"]["num_recomputed"] > 15
    specs = [trial.spec for trial in Store.open("runs/m").trials()]
    assert {order} == {spec.order.value for spec in specs}  # costs are measured alone


def test_every_listed_file_is_evidence(study, harness):
    trial = next(iter((study / "trials").iterdir()))
    Store(study).list_earlier(trial, study / "earlier" / f"{trial.name}-1")
    shutil.copytree(trial, study / "earlier" / f"{trial.name}-1")
    matched = Store(study).equivalence
    shutil.copytree(trial, matched.trial_dir(trial.name))
    for path in matched.trial_dir(trial.name).glob("rank_*.jsonl"):
        path.write_text(path.read_text().partition("\n")[2])  # of no other trial
    matched.list_trial(trial.name)
    listed = re.findall(
        r"^[0-9a-f]{64}  (.+)$", (study / "SHA256SUMS").read_text(), re.MULTILINE
    )
    kinds = {(of.partition("/")[0], of.rpartition("/")[2]): of for of in listed}
    places = {"plan.json", "gate.json", "trials", "earlier", "match"}
    assert places == {of for of, _ in kinds}
    assert ExitCode.OK == harness("verify", "stored")[0]
    for name in kinds.values():
        path, said = study / name, []
        content = path.read_bytes()
        for change in (lambda p, c: p.write_bytes(c + b"\n"), lambda p, _: p.unlink()):
            change(path, content)
            code, out, err = harness("verify", "stored", "--json")
            said.append((code, (name.rpartition("/")[0] or name) in out + err))
            path.write_bytes(content)
        bad = (ExitCode.SOME_TRIALS_FAILED, ExitCode.USAGE)
        assert all(code in bad and is_named for code, is_named in said), (name, said)
    (study / "earlier" / f"{trial.name}-1" / "samples_7.png").write_bytes(b"x")
    assert "samples_7.png" in harness("verify", "stored")[1]
