"""A program of a gang that only says who it is, in one line of JSON."""

import json
import sys

from replicator.cluster import environment


def main():
    config = environment.detect().config()
    answer = {
        "kind": environment.detect().family,
        "worker_id": config.worker_id,
        "num_workers": config.num_workers,
        "local_worker_id": config.local_worker_id,
        "num_workers_on_host": config.num_workers_on_host,
        "addresses": list(config.addresses["worker"]),
    }
    sys.stdout.write(f"{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
