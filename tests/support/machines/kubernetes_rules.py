"""What a server of Kubernetes accepts: schemas, rules that no schema has, and answers.

Also what becomes of the words of a command, and what a policy of failures says.
"""

import functools
import json
from pathlib import Path

from jsonschema.validators import validator_for

JOBSET = (
    Path(__file__).resolve().parents[2]
    / "harness" / "launch" / "data" / "jobset-v0.9.1.schema.json"
)  # fmt: skip
KINDS = {
    "jobs": ("batch/v1", "Job"),
    "secrets": ("v1", "Secret"),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "pods": ("v1", "Pod"),
}
"""Version and name of each kind, by its word in paths."""


class Refused(Exception):  # noqa: N818 (an answer)
    """What the server answers: its code, a word and a sentence."""

    def __init__(self, code, reason, message):
        super().__init__(message)
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


def expanded(word, variables):
    """A word of a command as Kubernetes gives it to the container."""
    data, out, at = word.encode(), bytearray(), 0
    while at < len(data):
        rest = data[at + 1 :]
        if data[at : at + 1] != b"$" or not rest:
            out += data[at : at + 1]
            at += 1
        elif rest[:1] == b"$":
            out += b"$"
            at += 2
        elif rest[:1] == b"(" and b")" in rest:
            name = rest[1 : rest.index(b")")]
            out += variables.get(name.decode(), f"$({name.decode()})").encode()
            at += len(name) + 3
        else:
            out += b"$" + chr(rest[0]).encode()
            at += 2
    return out.decode()


def template(*, claim, secret="", account="", namespace="team"):
    """Returns a PodTemplateSpec, such as that of ``docs/clusters.md``."""
    container = {"name": "harness", "image": "example/replicator:1"}
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": claim}}
    spec = {"containers": [container], "volumes": [volume]}
    if secret:
        container["envFrom"] = [{"secretRef": {"name": secret}}]
    if account:
        spec["serviceAccountName"] = account
    return {"metadata": {"namespace": namespace}, "spec": spec}


def problems(kind, made):
    """Returns what the server would not accept of an object."""
    errors = sorted(_validators()[kind].iter_errors(made), key=str)
    found = [f"{error.json_path}: {error.message}" for error in errors]
    return found or list(_broken_rules(kind, made))


@functools.cache
def _validators():
    """Returns the check of each kind; a JobSet has the ``spec`` of a Job in it."""
    jobset = json.loads(JOBSET.read_text(encoding="utf-8"))
    repeated = jobset["properties"]["spec"]["properties"]["replicatedJobs"]["items"]
    job = repeated["properties"]["template"]["properties"]["spec"]
    texts = {"additionalProperties": {"type": "string"}, "type": "object"}
    schemas = {
        "jobsets": jobset,
        "jobs": _object({"spec": job}, ["spec"]),
        "secrets": _object(
            {"data": texts, "stringData": texts, "type": {"type": "string"}}, []
        ),
    }
    return {kind: validator_for(of)(of) for kind, of in schemas.items()}


def _object(properties, required):
    word = {"type": "string"}
    common = {"apiVersion": word, "kind": word, "metadata": {"type": "object"}}
    return {
        "type": "object",
        "properties": {**common, **properties},
        "required": [*common, *required],
        "additionalProperties": False,
    }


def _broken_rules(kind, made):
    """Yields what the server checks beyond the schema."""
    if not {"name", "generateName"} & set(made["metadata"]):
        yield "metadata: name or generateName is required"
    if kind == "secrets":
        return
    spec = made["spec"]
    if kind == "jobsets":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    if pod.get("restartPolicy") not in {"Never", "OnFailure"}:
        yield "restartPolicy: must be Never or OnFailure"
    if "podFailurePolicy" in spec:
        yield from _broken_rules_of_policy(spec, pod)
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    for container in pod["containers"]:
        mounts = container.get("volumeMounts", ())
        for name in {mount["name"] for mount in mounts} - volumes:
            yield f"volumeMounts: {name!r} is no volume"
        if len({mount["mountPath"] for mount in mounts}) < len(mounts):
            yield "volumeMounts: mountPath must be unique"


def _broken_rules_of_policy(spec, pod):
    if pod.get("restartPolicy") != "Never":
        yield "podFailurePolicy: only for restartPolicy Never"
    if spec.get("podReplacementPolicy", "Failed") != "Failed":
        yield "podReplacementPolicy: must be Failed with a podFailurePolicy"


def action(policy, conditions, code):
    """What the first rule says that fits a pod; without one, the failure is counted."""
    code = code if code >= 0 else 128 - code
    for rule in policy.get("rules", ()):
        wanted = {one["type"] for one in rule.get("onPodConditions", ())}
        if wanted & set(conditions):
            return str(rule["action"])
        codes = rule.get("onExitCodes")
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            return str(rule["action"])
    return "Count"
