"""A stand-in for the server of Kubernetes: refuses what it would, and runs pods here.

It speaks enough of the protocol for a real ``kubectl``. What is created is checked
against schemas that allow no unknown field, as ``fieldValidation=Strict`` does, and
against rules that no schema has. A container is a process of
this machine: its command is expanded as Kubernetes does it, its claim is a folder, its
current folder is below ``root`` where it does not exist here. A Job makes pods by its
policy of failures, a JobSet one pod per completion. There is no network between pods,
and no scheduler.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.parse
import uuid
from pathlib import Path
from typing import Any

from jsonschema.validators import validator_for

JOBSET = (
    Path(__file__).resolve().parents[1]
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


_PATH = re.compile(
    r"/(?:api|apis)/(?P<version>[\w./-]+?)/namespaces/(?P<namespace>[\w.-]+)"
    r"/(?P<kind>\w+)(?:/(?P<name>[\w.-]+))?(?:/(?P<part>\w+))?"
)
_END_SEC = 20.0


class Pod:
    """One container, as a process of this machine."""

    def __init__(self, server, name, template, **own):
        self.name, self.uid, self.labels = name, str(uuid.uuid4()), own
        self.conditions: list[dict[str, str]] = []
        self.spec = template["spec"]
        (container,) = self.spec["containers"]
        self.log = server.folder / f"{name}.log"
        variables = server.variables_of(self, container)
        folder = server.folder_of(self, container)
        command = [expanded(word, variables) for word in container["command"]]
        if command[0] == "python":
            command[0] = sys.executable
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, number=signal.SIGTERM):
        """Ends the container as the kubelet does: a signal to its first process."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(self.spec.get("terminationGracePeriodSeconds", 30))
        except subprocess.TimeoutExpired:
            self.process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def object(self):
        """What the server says of it."""
        code = self.process.poll()
        phase = {None: "Running", 0: "Succeeded"}.get(code, "Failed")
        return {
            "metadata": {"name": self.name, "uid": self.uid, "labels": self.labels},
            "status": {"phase": phase, "conditions": self.conditions},
        }


class StandIn:
    """The server, until it is closed."""

    def __init__(self, folder, claims, *, has_images):
        self.folder, self.has_images = folder, has_images
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: list[Pod] = []
        self.asked: list[str] = []
        for name, modes in claims.items():
            (folder / "claims" / name).mkdir(parents=True)
            self.objects["persistentvolumeclaims", name] = {
                "metadata": {"name": name},
                "spec": {"accessModes": modes},
            }
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(
            target=self._http.serve_forever, args=(0.02,), daemon=True
        ).start()
        self.kubeconfig = folder / "kubeconfig.json"
        self.kubeconfig.write_text(json.dumps(self._config()))

    def _config(self):
        port = self._http.server_address[1]
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [
                {"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}
            ],
            "users": [{"name": "me", "user": {}}],
            "contexts": [
                {
                    "name": "here",
                    "context": {"cluster": "here", "user": "me", "namespace": "team"},
                }
            ],
        }

    def close(self):
        """Ends all pods and the server."""
        self._is_closed = True
        for pod in self.pods:
            if pod.process.poll() is None:
                pod.end(signal.SIGKILL)
        for thread in self._threads:
            thread.join(_END_SEC)
        self._http.shutdown()
        self._http.server_close()

    def evict(self, pod):
        """Takes the host of a pod away, as a drained node does."""
        pod.conditions.append({"type": "DisruptionTarget", "status": "True"})
        pod.end()

    def variables_of(self, pod, container):
        """The environment of a container."""
        fields = {
            "metadata.name": pod.name,
            "metadata.uid": pod.uid,
            "metadata.namespace": "team",
            "status.podIP": "127.0.0.1",
        }
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "HOSTNAME": pod.name,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        for source in container.get("envFrom", ()):
            secret = self.get("secrets", source["secretRef"]["name"])
            variables |= secret.get("stringData", {})
        for one in container.get("env", ()):
            field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            variables[one["name"]] = fields[field] if field else one["value"]
        if "index" in pod.labels:
            variables["JOB_COMPLETION_INDEX"] = pod.labels["index"]
        return variables

    def folder_of(self, pod, container):
        """The current folder of a container, with its claims."""
        start = container.get("workingDir", "/")
        if not start.startswith("/"):  # as runc says
            raise Refused(500, "InternalError", "Cwd must be an absolute path")
        claims = {
            volume["name"]: volume["persistentVolumeClaim"]["claimName"]
            for volume in pod.spec.get("volumes", ())
            if "persistentVolumeClaim" in volume
        }
        for mount in container.get("volumeMounts", ()):
            if mount["name"] in claims:
                at = self.here(mount["mountPath"])
                if not at.exists():
                    at.parent.mkdir(parents=True, exist_ok=True)
                    at.symlink_to(self.folder / "claims" / claims[mount["name"]])
        folder = self.here(start)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def here(self, path):
        """A path in a container, on this machine."""
        is_own = Path(path).is_relative_to(self.folder.parent)
        return Path(path) if is_own else self.folder / "root" / path.lstrip("/")

    def get(self, kind, name):
        if (kind, name) not in self.objects:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        return self.objects[kind, name]

    def create(self, kind, made, *, is_tried):
        """Checks an object, and starts what it says."""
        version, word = KINDS[kind]
        if (made.get("apiVersion"), made.get("kind")) != (version, word):
            raise Refused(400, "BadRequest", f"{made.get('kind')} is no {word}")
        if found := problems(kind, made):
            said = f"{word} is invalid: {'; '.join(found)[:250]}"
            raise Refused(422, "Invalid", said)
        metadata = made["metadata"]
        if "generateName" in metadata:
            metadata["name"] = f"{metadata['generateName']}{uuid.uuid4().hex[:5]}"
        name = metadata["name"]
        if (kind, name) in self.objects:
            raise Refused(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if not is_tried:
            self.objects[kind, name] = made
            run = {"jobs": self._run_job, "jobsets": self._run_jobset}.get(kind)
            if run is not None and self.has_images:
                thread = threading.Thread(target=run, args=(name, made))
                self._threads.append(thread)
                thread.start()
        return made

    def delete(self, kind, name):
        """Removes an object, and ends its pods."""
        found = self.get(kind, name)
        del self.objects[kind, name]
        for pod in self.pods:
            if name in pod.labels.values() and pod.process.poll() is None:
                pod.end()
        return found

    def answer(self, method, address, body):
        """Does what a request asks for; returns the answer, a text or an object."""
        url = urllib.parse.urlsplit(address)
        query = dict(urllib.parse.parse_qsl(url.query))
        found = _PATH.fullmatch(url.path)
        if found is None or KINDS.get(found["kind"], ("",))[0] != found["version"]:
            raise Refused(404, "NotFound", f"no such path {url.path}")
        kind, name = found["kind"], found["name"]
        if found["namespace"] != "team":
            raise Refused(403, "Forbidden", f"namespace {found['namespace']!r}")
        if method == "POST":
            is_tried = query.get("dryRun") == "All"
            return self.create(kind, json.loads(body), is_tried=is_tried)
        if method == "DELETE":
            return self.delete(kind, name)
        if kind == "pods":
            return _pods(self, name, found["part"], query)
        if name is None:
            items = [made for (of, _), made in self.objects.items() if of == kind]
            return {"kind": "List", "items": items}
        return self.get(kind, name)

    def _end(self, made, condition):
        made["status"] = {"conditions": [{"type": condition, "status": "True"}]}

    def _run_job(self, name, made):
        """Makes pods until one succeeds, or the policy says that the Job has failed."""
        spec = made["spec"]
        num_failures = 0
        while ("jobs", name) in self.objects and not self._is_closed:
            own = {"job-name": name}
            pod = Pod(self, f"{name}-{uuid.uuid4().hex[:5]}", spec["template"], **own)
            self.pods.append(pod)
            code = pod.process.wait()
            if code == 0:
                return self._end(made, "Complete")
            given = [condition["type"] for condition in pod.conditions]
            said = action(spec.get("podFailurePolicy", {}), given, code)
            num_failures += said == "Count"
            if said == "FailJob" or num_failures > spec["backoffLimit"]:
                return self._end(made, "Failed")
        return None

    def _run_jobset(self, name, made):
        """Makes all pods; when one fails, the others are ended."""
        (replicated,) = made["spec"]["replicatedJobs"]
        spec = replicated["template"]["spec"]
        pods = []
        for index in range(spec["completions"]):
            own = {"jobset.sigs.k8s.io/jobset-name": name, "index": str(index)}
            pod_name = f"{name}-{replicated['name']}-0-{index}"
            pods.append(Pod(self, pod_name, spec["template"], **own))
        self.pods += pods
        codes = [pod.process.wait() for pod in pods]
        self._end(made, "Failed" if any(codes) else "Completed")


def _handler(server):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            """Says nothing."""

        def _answer(self):
            server.asked.append(f"{self.command} {self.path}")
            try:
                code, said = 200, server.answer(self.command, self.path, self._body())
            except Refused as refused:
                code, said = refused.status["code"], refused.status
            data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            self.send_response(code)
            kind = "text/plain" if isinstance(said, str) else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _body(self):
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

    for method in ("GET", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._answer)
    return Handler


def _pods(server, name, part, query):
    if part == "log":
        (pod,) = (pod for pod in server.pods if pod.name == name)
        lines = pod.log.read_text(errors="replace").splitlines(keepends=True)
        return "".join(lines[-int(query.get("tailLines", "1000000")) :])
    wanted = dict(
        pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair
    )
    items = [
        pod.object() for pod in server.pods if wanted.items() <= pod.labels.items()
    ]
    return {"kind": "PodList", "apiVersion": "v1", "items": items}


@contextlib.contextmanager
def running(folder, claims, *, has_images=True):
    """Runs one, and ends all of its pods; none begins where no image can be pulled."""
    server = StandIn(folder, claims, has_images=has_images)
    try:
        yield server
    finally:
        server.close()
