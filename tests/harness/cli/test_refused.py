"""What cannot be run is refused at once: one line, exit code 2, nothing written."""

import re
import shlex
import sys
import time

import pytest
from command_lines import overridden
from fake_machine import FakeNvml, install_ray, make_gpus, with_cpus

REFUSED_SEC = 5.0
"""For a refusal, on a busy machine; alone it takes a few hundredths of a second."""

# Words that begin a line are those of the rows below it, which add, replace or, after
# "!", leave out an option; then what is said.
REFUSED = r"""
sweep --workload=resnet50 --preset=smoke
  --replicas=1,3 --mode=strong -> global batch 4 is not divisible by 3
  --replicas=1,8 --mode=strong -> global batch 4 .* 8 replicas .*size 8, or 4 re
  --replicas=7 --mode=strong --global-batch-size=999999937 -> not divisible by 7 .*or 1
  --mode=weak --global-batch-size=8 -> --global-batch-size 8 has no effect
  --mode=medium -> --mode: unknown scaling mode 'medium'; allowed are weak
  --study= -> --study '' is not a study name
  --option=a=1 --option=a=2 -> --option: 'a' is given twice
  --option=jit=step --backends=in_graph -> option jit='step' must be one of 'off', 'com
  --backends=tf_parameter_server --option=jit=compute -> not work on .*; use --backends
  --backends=tpu -> 'tpu' cannot be swept: it needs a TPU
  --device=tpu -> --device: 'tpu' is not one of 'cpu', 'gpu'
  --repeat=3 -> No such option.*--repeat
  --runs-dir=file/x -> '.*file' is a file, but a directory is needed
  --runs-dir=/proc/runs -> cannot write study directory '/proc/runs/
  --runs-dir=taken --study=f -> 'taken/f' is a file, but a study is a dir
  --runs-dir=taken --study=d -> 'taken/d' is not a study: it has 'x'
  --replicas=0 -> --replicas: '0' is not positive; allowed are positive integers
  --replicas=1.5 -> '1.5' is not an integer; allowed
  --replicas= -> '' is not an integer
  --replicas=1,,2 -> '' in '1,,2' is not an integer
  --replicas=8..1 -> '8..1' ends before it starts \(1 < 8\); write 1..8
  --replicas=1..8x1 -> '1..8x1' multiplies by 1 and would never end
  --replicas=1..99999999 -> '99999999' in .* is more than 65536
  --backends=a,,b -> --backends: 'a,,b' has an empty name
  --timeout=0 -> --timeout: '0' is not a duration; allowed are numbers above 0 with a
  --timeout=-5s -> '-5s' is not a duration
  '--timeout=2 days' -> \(90s, 12min, 2h\), at most 1e\+09s$
  --timeout=30 -> '30' is not a duration; it has no unit: write 30s or 30min; allowed
  --timeout=1e3 -> '1e3' is not a duration; allowed
  --timeout=1e3s -> '1e3s' is not a duration
  --timeout=02:00:00 -> '02:00:00' is not a duration; write 2h; allowed
  --timeout=00:00:00 -> '00:00:00' is not a duration; allowed
  --set=seed=9223372036854775808 -> --set seed: .* is not an integer fr
  --data=folder:~no-user -> there is no home directory of '~no-user' here; wr
  --data=folder:loop -> data 'folder:loop': 'loop' is not a folder
  --repeats=1000000 -> has \d{8} trials, .* at most 100000: use few
  --replicas=1..65536 --mode=weak -> the sweep has 655360 trials, and each is a process
  --budget=60s --timeout=200s -> may not end within --timeout 200 s.*t 210s
  --budget=60 -> --budget '60' is not a budget; allowed are
  --budget=0s -> --budget '0s' is not a budget; allowed are
  --budget=3epochs -> --budget '3epochs' is not a budget; allowed are
  --budget=none,window -> --budget 'none,window' is not a budget; allowed are
  --budget=1s,2s -> --budget '1s,2s' is not a budget; allowed are
  --controls=twin -> --controls: unknown control 'twin'; allowed are nosync, in
  --controls=all,independent -> --controls: 'all' stands beside other names in 'all,
  --set=speed=2 -> unknown key of --set 'speed'; known are
  --set=rounds -> --set 'rounds' is not KEY=VALUE; see --help
  --set=rounds=2 --set=rounds=3 -> --set rounds is given twice, and only one wo
  --unit=cells -> --unit 'cells' has no effect wi
  --launcher=local --set=nodes=2 -> --set nodes=2 has no effect with --launcher lo
  --launcher=slurm --time-limit=9 -> no longer an option: set SBATCH_TIMELIMIT
  --launcher=jobset -> --launcher jobset starts no trials, it only writes files: use
sweep --workload=resnet50 --preset=smoke --controls=synthetic,nosync,independent
  --order=sequential -> --controls n.* with order .*use --order interleaved,
  --mode=strong -> --controls .* without weak scaling: .*add weak to
  --mode=weak --replicas=1,16 -> --controls .* on at most 8 cores
sweep --workload=resnet50 --preset=smoke --mode=weak --set=replicas-per-worker=2
  --backends=in_graph,single --replicas=1,2 -> 2 has no effect on in_graph,
  --backends=multi_worker --replicas=1,3 -> 3 .* not divisible by 2; use 2
  --backends=tf_multi_worker --replicas=2 -> with --device cpu: the stock st
sweep --workload=resnet50 --preset=smoke --mode=weak --backends=multi_worker
  --launcher=ray --set=nodes=2 -> nodes=2 has no effect with --launcher ray; add -
  --launcher=ray --order=interleaved -> --order interleaved on 2 hosts: blocks are judg
sweep --workload=resnet50 --preset=smoke --mode=weak --replicas=1,2 --no-match
  --vary=data -> --vary: 'data' is not KEY=A,B,...; write for example global-batc
  --vary=data=a:b,a/b -> 'a:b' is given twice, or its study would have the name
  --vary=data=a -> has 1 values; allowed are 2 to 100; of one, use --data
  --vary=global-batch-size=8,x --mode=strong -> 'x' is not an integer
  --vary=global-batch-size=8,16 -> --global-batch-size 8 has no effect with
  --vary=data=digits,synthetic --json -> --json is for one study, and --
  --vary=data=digits,synthetic --data=digits -> varies data, which is 'digits' by an op
sweep --workload=d4pg --preset=smoke --budget=none --replicas=1 --backends=in_graph
  --data=walker:fly -> 'walker' has the tasks .*; did you mean 'walker:walk' or
  --replicas=1,3 --mode=strong -> 32 is not divisible by 3 .* 30 or 33, or 2 or 4
  --option=min_replay_size=30000 -> 15327 of min_replay_size=30000 .* at least 30654 wi
  --device=gpu --preset=gpu --set=steps-per-sync=2 -> 2 with workload d4pg: \
actors .*; use 1
sweep --workload=transformer --preset=smoke --replicas=1,2
  --per-replica-batch-size=100 -> sequence_length 64; use 64 or 128 tokens per repl
  --mode=strong --global-batch-size=96 --replicas=2 -> of 48 tokens each: .*-size 128 wi
  --option=pipeline_stages=2 --backends=tf_mirrored -> does not work on backend 'tf_mirr
sweep
  --evaluate=x -> --evaluate is no longer an option: use --budget window, or
  --no-evaluate -> --no-evaluate is no longer an option: use --budget window, or
  --gpus-per-worker=2 -> no longer an option: use --set replicas-per-worker=N
  --rounds=2 -> --rounds is no longer an option: use --set rounds=VALUE
  --nodes=2 -> --nodes is no longer an option: use --set nodes=VALUE
  --study=nothing -> ^error: no study at 'runs/nothing': .*does not exist
  --study=empty -> ^error: no study at 'runs/empty': .*plan.json
   -> nothing to measure: give --command with your program, or
sweep '--command=a {replicas} {per_replica_batch_size}' '--metric=throughput=([0-9.]+)'\
 --replicas=1,2 --per-replica-batch-size=4
  "--command=train 'a" -> --command .* cannot be split .*; close the quot
  "--command=cd a && b {replicas}" -> has '&', .* no.* started; write sh -c
  "--command=b $C {replicas}" -> has '\$C', .* quotation marks where it is t
  "--command=a {replica}" -> unknown placeholder .*did you mean 'replicas'
  "--command=a {seed}" -> has no \{replicas\}, .* same program with 1 and 2
  "--command=a {replicas}" -> neither \{per_replica_batch_size\} .*--mode strong
  --metric=throughput -> without --metric NAME=PATTERN: say where it
  --metric=peak_memory -> --metric peak_memory with --command: .* client
  --metric=speed=(.*) -> unknown metric of --command 'speed'; known are
  --metric=throughput=([ -> has no regular expression: .*; write brackets
  --metric=throughput=(a)(b) -> has 2 groups, and needs one
  --metric=wall --steps=3+ -> --steps has no effect with --metric wall, which times
  --metric=step_time[joy]=(a) -> brackets hold at most one of comma, thou
  !--per-replica-batch-size -> without --per-replica-batch-size: say how
  !--replicas -> without --replicas: say which numbers of replicas
  --order=relay -> a command cannot take turns, so whole trials alternate
  --workload=resnet50 -> --workload has no effect with --command
  --time-budget=3min -> --time-budget has no effect with --command, .*leave
  --budget=60s -> --budget has no effect with --command
  --replicas=4 --set=replicas-per-worker=3 -> 4 replicas are not divisible by 3; use 3
  --count=bytes -> 'bytes' is not NAME=PATTERN
  --count==([0-9]) -> is not NAME=PATTERN; write a name of letters and di
  --count=a=(x -> has no regular expression:
  --count=a=(x) --metric=client -> has no effect with --metric client,
  --count=a=(x) --count=a=(y) -> 'a' is given twice
  --param=kind -> --param 'kind' is not NAME=A,B,...; write for example
  --param=kind=a --param=kind=b -> --param 'kind' is given twice; choose another name
  --param=seed=1,2 --param=kind=a -> --param 'seed' is a placeholder already
gate --workload=resnet50
  --work=x -> --work is no longer an option: use --mode strong for fixed work,
  --seed=1 -> --seed is no longer an option: use --set seed=VALUE
  --baseline=HEAD --metric=client -> unknown metric 'client'; allowed are throughput,
status
  nothing -> ^error: no study at 'runs/nothing': .*does not exist
  empty -> ^error: no study at 'runs/empty': .*plan.json
  '' -> ^error: study '' is empty; name a study in 'runs'
report
  nothing -> ^error: no study at 'runs/nothing': .*does not exist
  empty -> ^error: no study at 'runs/empty': .*plan.json
  '' -> ^error: study '' is empty; name a study in 'runs'
launch render --workers=4 --gpus-per-worker=2 -- python train.py
  --launcher=local -> --launcher local writes no files: its trials are started by
  --launcher=slurm --set=replicas=3 -> makes 8 replicas, not replicas=3; choose
  --launcher=slurm --set=nodes=5 -> --set nodes=5 is more than --workers 4: \
.*at most
  --launcher=slurm "--name=A B" -> job name 'A B' is not valid; allowed are up to
  --launcher=slurm '--directory=/a"b' -> cannot stand in a batch file; leave out line
  --launcher=slurm --set=pod-template=x -> late=x has no effect with --launcher slu
  --launcher=slurm --set=time-limit=2h -> --launcher slurm; give --time to sbatch
  --launcher=ray --set=time-limit=02:00:00 -> is not a duration; write 2h; allowed
  --launcher=ray --set=nodes=3 -> --workers 4 is not divisible by nodes=3
  --launcher=slurm --nodes=2 -> no longer an option: use --set nodes=VALUE
  --launcher=jobset -> jobset requires --set pod-template=FILE with an image: pods
launch render --workers=4 --launcher=jobset --set=pod-template=image.yaml -- python t.py
  --name=1a -> job name '1a' cannot be the name of a service, which begins with a
  --name=aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeefff -> too long: .* most 63
launch render --workers=4
  --launcher=slurm -> no command to run; write it after '--', for example
"""
DIGITS, SMOKE = "9" * 5000, ("sweep", "--workload=resnet50", "--preset=smoke")
EXTREME = [
    (("--repeats", DIGITS), r"--repeats: '9{9}.* is not an integer from 1 to"),
    (("--replicas", f"1..{DIGITS}"), r"--replicas: '9+.* is more than 65536"),
    (("--replicas", f"2..8x{DIGITS}", "--repeats=0"), r"--repeats"),
    (("--timeout", DIGITS), r"9\.\.\. is not a duration"),
    (("--timeout=\N{ARABIC-INDIC DIGIT THREE}s",), r"is not a duration"),
    (("--budget", f"{DIGITS}s"), r"is not a budget; .* at most 1e\+15"),
    (
        ("--option", f"learning_rate_per_256={DIGITS}"),
        r"'9+.*is out of bounds; allowed",
    ),
    (("--runs-dir", "a" * 300), r"cannot use 'a+': File name too long; choose another"),
    (("--study=a\0b",), r"argument '--study=a\\x00b': '\\x00' is a control character"),
    (("--study=\udcff",), r"argument '--study=\\udcff': '\\udcff' is not UTF-8; use"),
    (("--study", "a" * 70_000), r"has 70000 characters; allowed are at most 65536"),
]


def rows():
    base = ()
    for line in REFUSED.replace("\\\n", "").strip().splitlines():
        if not line.startswith(" "):
            base, _, program = line.partition(" -- ")
            end = ["--", *shlex.split(program)] * bool(program)
            base = shlex.split(base)
            continue
        text, _, message = line.partition(" -> ")
        more = shlex.split(text)
        gone = {word[1:] for word in more if word.startswith("!")}
        more = [word for word in more if not word.startswith("!")]
        words = overridden(base, *more)
        kept = [word for word in words if word.partition("=")[0] not in gone]
        yield pytest.param((*kept, *end), message.strip(), id=text.strip() or base[0])
    for more, message in EXTREME:
        yield pytest.param((*SMOKE, *more), message, id=message[:20])


@pytest.fixture
def place(tmp_path, tmp_path_factory, monkeypatch):
    """Eight cores, two GPUs, a Ray of two hosts, and files where folders should be."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    (tmp_path / "taken" / "d").mkdir(parents=True)
    (tmp_path / "taken" / "d" / "x").write_text("")
    (tmp_path / "taken" / "f").write_text("")
    image = "spec: {containers: [{name: harness, image: example/replicator:1}]}"
    (tmp_path / "image.yaml").write_text(image)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(make_gpus(2)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install_ray(tmp_path_factory.mktemp("ray"), monkeypatch, (8, 0), (8, 0))
    monkeypatch.setattr("workloads.d4pg.capacity.check", lambda *_, **__: None)
    monkeypatch.setattr("harness.run.sweep.run_trials", lambda *_: pytest.fail("runs"))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("words", "message"), [*rows()])
def test_what_cannot_run_is_one_line_and_nothing_is_written(refuse, words, message):
    start = time.monotonic()
    err = refuse(*words, overrides=with_cpus(range(8)))

    assert re.search(message, err), err
    assert time.monotonic() - start < REFUSED_SEC
