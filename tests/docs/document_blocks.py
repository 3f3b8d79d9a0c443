"""Runs the Python blocks of a document, which a file has as JSON.

    python document_blocks.py FILE

It has the name of the document, the folder in which it runs, and per block the lines
before it and its code. A traceback has the document's own line numbers.
"""

import json
import os
import sys
from pathlib import Path


def _fork_clusters(support):
    """Makes clusters that the document starts fork their processes."""
    sys.path.append(str(support))
    import case_cluster

    from replicator.cluster import local_cluster

    local_cluster.LocalCluster = case_cluster.ForkedCluster


def main():
    """Runs them in order; later ones see what earlier ones have defined."""
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    os.chdir(document["folder"])
    # Not the folder of this file, but that of the project, as of whoever reads it.
    sys.path[0] = document["root"]
    _fork_clusters(Path(document["root"]) / "tests" / "support")
    namespace = {"__name__": "__main__"}
    for number, code in document["blocks"]:
        exec(compile("\n" * number + code, document["name"], "exec"), namespace)


if __name__ == "__main__":
    main()
