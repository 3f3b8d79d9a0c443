"""Runs a sweep for each of several rates of the network between two nodes of Slurm.

    python tests/cluster_engines/study_of_rates.py --rates 100,1000 --repeats 5

Rates are in Mbit/s; each is a study of its own in --runs-dir, which 'report' compares.
Needs root, Slurm, and a kernel with the queueing discipline tbf.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support" / "machines")]

import slurm_cluster  # noqa: E402 (its folder is added above)


def main():
    """Runs the sweeps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="100,1000")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    if reason := slurm_cluster.missing():
        sys.exit(f"a cluster of Slurm {reason}")
    runs_dir = arguments.runs_dir.absolute()
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        slurm_cluster.running(Path(folder)) as cluster,
    ):
        for rate in map(int, arguments.rates.split(",")):
            if reason := cluster.limit_rate(rate):
                sys.exit(f"the kernel cannot limit the rate: {reason}")
            sweep = (
                sys.executable, "-m", "harness", "sweep", "--workload=resnet50",
                "--preset=smoke", "--data=synthetic", "--backends=multi_worker",
                "--replicas=1,2", "--mode=weak", f"--repeats={arguments.repeats}",
                "--num-measured-steps=20", "--launcher=slurm", "--no-match",
                "--budget=none", f"--study=rate-{rate}", f"--runs-dir={runs_dir}",
            )  # fmt: skip
            log = Path(folder) / "sweep.log"
            subprocess.run(
                cluster.job(sweep, log=log, cwd=ROOT),
                check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            sys.stdout.write(log.read_text())


if __name__ == "__main__":
    main()
