"""A stand-in for ``bsub`` of LSF: accepts a job, prints its id, and runs it here.

    bsub [options] < JOB

It does what the manual of LSF says of ``-J "name[1-N]"``, ``-n``, ``-R span[ptile=M]``,
``-o`` with ``%J`` and ``%I``, ``-q``, ``-W`` and ``-x``, also of options in lines
``#BSUB``; it refuses others, and queues that are not in ``LSF_QUEUES``. Jobs find the
variables of LSF, and the hosts that ``LSF_HOSTS`` names. What was accepted is a line of
JSON in ``LSF_FOLDER``.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

OPTIONS = ("-J", "-n", "-R", "-o", "-q", "-W")


def read(text, arguments):
    """Returns the options of a job; those of the command line come first."""
    parser = argparse.ArgumentParser(prog="bsub", exit_on_error=False)
    for name in OPTIONS:
        parser.add_argument(name)
    parser.add_argument("-x", action="store_true")
    lines = re.findall(r"^#BSUB (.*)$", text, re.MULTILINE)
    words = [word for line in lines for word in shlex.split(line)]
    return vars(parser.parse_args([*words, *arguments]))


def hosts_of(job):
    hosts = os.environ["LSF_HOSTS"].split(",")
    per_host = int(re.fullmatch(r"span\[ptile=(\d+)\]", job["R"] or "span[ptile=1]")[1])
    slots = int(job["n"] or 1)
    if slots > per_host * len(hosts):
        sys.exit(f"Too many processors requested: {slots}. Job not submitted.")
    return [hosts[slot // per_host] for slot in range(slots)]


def run(job, number, text):
    """Runs a job, or one after the other those of an array, to their end."""
    name, _, last = re.fullmatch(r"([^[]+)(\[1-(\d+)\])?", job["J"] or "job").groups()
    slots = hosts_of(job)
    counted = [f"{host} {slots.count(host)}" for host in dict.fromkeys(slots)]
    for index in range(1, int(last) + 1) if last else (0,):
        log = (job["o"] or "/dev/null").replace("%J", number).replace("%I", str(index))
        with Path(log).open("a", encoding="utf-8") as out:
            subprocess.run(
                ["/bin/sh", "-s"],
                input=text,
                text=True,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
                env={
                    **os.environ,
                    "LSB_JOBID": number,
                    "LSB_JOBINDEX": str(index),
                    "LSB_JOBNAME": f"{name}[{index}]" if index else name,
                    "LSB_QUEUE": job["q"] or "normal",
                    "LSB_HOSTS": " ".join(slots),
                    "LSB_MCPU_HOSTS": " ".join(counted),
                },
            )


def main():
    """Accepts a job, and runs it in a process of its own."""
    text = sys.stdin.read()
    try:
        job = read(text, sys.argv[1:])
    except (argparse.ArgumentError, SystemExit) as error:
        sys.exit(f"bsub: {error}. Job not submitted.")
    if job["q"] not in (None, *os.environ["LSF_QUEUES"].split(",")):
        sys.exit(f"{job['q']}: No such queue. Job not submitted.")
    hosts_of(job)
    accepted = Path(os.environ["LSF_FOLDER"]) / "accepted.jsonl"
    accepted.touch()
    number = str(101 + len(accepted.read_text(encoding="utf-8").splitlines()))
    with accepted.open("a", encoding="utf-8") as out:
        out.write(json.dumps({**job, "text": text}) + "\n")
    queue = job["q"] or "normal"
    sys.stdout.write(f"Job <{number}> is submitted to queue <{queue}>.\n")
    sys.stdout.flush()
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        run(job, number, text)


if __name__ == "__main__":
    main()
