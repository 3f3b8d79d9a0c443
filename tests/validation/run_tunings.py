"""Measures what each way to tune a peer brings: interleaved in one study.

    python tests/validation/run_tunings.py torch_ddp fused=0 compile=1 \
        -- --workload resnet50 --replicas 2 --mode weak --time-budget 10min

Each argument is one way, in words as ``DEFAULTS`` of the peer's process has them; after
``--`` are options of ``sweep``. Prints the throughput of each way over that of the
defaults, with its 95 % interval over runs. Needs ``make setup-peers``. With
``--loaded`` as the first argument all turns count, whatever else runs on the machine:
ratios to choose by, not to publish.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

from harness.cli.main import main as run_verb
from harness.run.trial_runner import RunSettings
from results.figures import scaling
from results.records import identity
from results.store.study_store import Store
from results.study.cases import load_study
from workloads.peers.catalog import PEERS, PeerInfo


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tuned(PeerInfo):
    """A peer that is started with other values than its defaults."""

    words: str  # These, as they follow its command.

    def command(self, workload):
        """Returns what starts its program."""
        return f"{PeerInfo.command(self, workload)} {self.words}"


def main(argv):
    """Runs the study, and prints its ratios; returns the exit code of the sweep."""
    if argv[:1] == ["--loaded"]:
        argv = argv[1:]
        settings = RunSettings.__init__.__kwdefaults__
        assert settings is not None
        settings["void_reason"] = lambda *_: ""
    split = argv.index("--") if "--" in argv else len(argv)
    (peer, *ways), options = argv[:split], argv[split + 1 :]
    plain, names = PEERS[peer], {}
    for words in ways:
        names[words] = f"{peer}[{words.replace(' ', ';')}]"
        fields = {of.name: getattr(plain, of.name) for of in dataclasses.fields(plain)}
        PEERS[names[words]] = Tuned(**{**fields, "name": names[words]}, words=words)
    study = f"tuning-{peer}-{identity.digest(argv)[:6]}"
    backends = ",".join([peer, *names.values()])
    code = run_verb(["sweep", *options, "--backends", backends, "--study", study])
    runs_dir = Path("runs")
    if "--runs-dir" in options:
        runs_dir = Path(options[options.index("--runs-dir") + 1])
    for pair in scaling.compare_backends(load_study(Store.open(runs_dir / study))):
        if pair.first.spec.backend != peer or pair.ratio is None:
            continue
        low, high = (1 / (end or math.nan) for end in (pair.ratio.high, pair.ratio.low))
        sys.stdout.write(
            f"{pair.second.spec.backend} x{pair.second.spec.num_replicas}:"
            f" {1 / pair.ratio.value:.3f} [{low:.3f}, {high:.3f}] of the defaults,"
            f" n = {pair.ratio.n}\n"
        )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
