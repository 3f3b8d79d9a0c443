"""Programs that answer as Slurm's, for what is submitted and never run."""

import os

PROGRAMS = {
    "sinfo": 'echo "main* 2"; echo "big 8"',
    "sbatch": (
        'cat > "$SUBMITTED"; echo "$SBATCH_PARTITION $SBATCH_TIMELIMIT" >> "$SUBMITTED"'
        '; echo "42;cluster"'
    ),
    "srun": "exit 1",
}


def install(folder, monkeypatch):
    """Puts the programs into PATH; returns the file that gets what is submitted."""
    for name, text in PROGRAMS.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITTED", str(folder / "submitted"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return folder / "submitted"
