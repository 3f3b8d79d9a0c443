"""Programs that answer as Slurm's: jobs are never run, steps are started on this host.

Tasks of a step know their ranks, nodes and the address of ``srun``, as real ones do.
"""

import os
import sys

SRUN = f"""#!{sys.executable}
import itertools, os, subprocess, sys
words = [*itertools.takewhile(lambda word: word[:2] == "--", sys.argv[1:])]
given = dict(word[2:].split("=", 1) for word in words if "=" in word)
command = sys.argv[1 + len(words):]
nodes, tasks = int(given["nodes"]), int(given["ntasks"])
own = {{
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    "SLURM_STEP_NODELIST": f"node[1-{{nodes}}]",
    "SLURM_STEP_NUM_TASKS": str(tasks),
    "SLURM_STEP_TASKS_PER_NODE": f"{{tasks // nodes}}(x{{nodes}})",
}}
running = [
    subprocess.Popen(command, env={{
        **os.environ, **own,
        "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank * nodes // tasks),
    }})
    for rank in range(tasks)
]
sys.exit(max(abs(one.wait()) for one in running))
"""
PROGRAMS = {
    "sinfo": '#!/bin/sh\necho "main* 2"; echo "big 8"\n',
    "sbatch": '#!/bin/sh\ncat > "$SUBMITTED"\n'
    'echo "$SBATCH_PARTITION $SBATCH_TIMELIMIT" >> "$SUBMITTED"\necho "42;cluster"\n',
    "squeue": "#!/bin/sh\n",
    "scancel": "#!/bin/sh\n",
    "srun": SRUN,
}


def install(folder, monkeypatch):
    """Puts the programs into PATH; returns the file that gets what is submitted."""
    for name, text in PROGRAMS.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITTED", str(folder / "submitted"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return folder / "submitted"
