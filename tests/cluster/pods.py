"""A pod of the test cluster: its sandbox, its containers, and what the API server is told of them.

    created -> sandbox and volumes -> containers run, end, run again -> over -> deleted

A container waits, runs or has terminated, and runs again as the pod's restartPolicy says.  SIGTERM
to its process 1, and SIGKILL after the grace period, when the pod is deleted.  Each pod has a
thread, which looks at it ``POLL_S`` apart; what the API server misses while it is away, it is told
later.

Different from a real kubelet: an image is only a name (one that begins with ``missing`` cannot be
pulled); roots are layers over the machine's own; a crashed container waits 0.5 s, 1 s, ... 10 s;
limits are not enforced; init containers and hooks are refused, liveness probes not looked at.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.api import AWAY, ApiError, Object
from tests.cluster.ground import ADDRESS, ROOT, child_of
from tests.cluster.volumes import Volumes, field

if TYPE_CHECKING:
    from tests.cluster.kubelet import Kubelet

POLL_S = 0.02
HERE = Path(__file__).parent

PATH = ":".join(
    [
        *("/usr/local/bin", f"{ROOT}/.venv/bin", str(Path(sys.executable).parent)),
        *("/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
    ]
)
"""Of every container: ``pliant`` and ``python`` are those of this project."""

WAIT_FOR_CHILD = 'exec 3>&2 2>/dev/null; (exec sh "$0" "$@" 2>&3 3>&-); exit $?'
"""Has a child, process 1 of the container, and ends as that does; ``unshare --fork`` ends with 1 if
a signal has ended the child, and a shell would say so in the container's log."""

MOST_MESSAGE_BYTES = 4096
"""Of a termination message, as a real kubelet keeps."""


def moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(slots=True)
class Times:
    """When what happened to a pod: monotonic seconds; None: not yet."""

    running: float | None = None
    """Its containers run for the first time."""
    told_to_end: float | None = None
    """They were sent SIGTERM."""
    ended: float | None = None
    """The last of them has ended."""
    gone: float | None = None
    """The API server has it no more."""


class Container:
    """One container of a pod."""

    def __init__(self, pod: Pod, spec: Object) -> None:
        self.pod, self.spec, self.name = pod, spec, spec["name"]
        if unknown := spec.keys() & {"lifecycle", "envFrom"}:
            raise NotImplementedError(f"the test kubelet knows no {unknown}")
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: Object = {}
        self.restarts, self.is_ready = 0, False
        self.log = pod.directory / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._start_s: float | None = 0.0  # None: never again
        self._probe_s = 0.0
        self._killed_for = ""

    @property
    def is_over(self) -> bool:
        return self._process is None and self._start_s is None

    @property
    def exit_code(self) -> int:
        return int(self.state.get("terminated", {}).get("exitCode", 0))

    @property
    def pid(self) -> int | None:
        """Its process 1, as this machine counts."""
        if self._process is None or (shell := child_of(self._process.pid)) is None:
            return None
        return child_of(shell)

    def look(self, now_s: float) -> None:
        """Start it if it is time, and see whether it has ended or is ready."""
        if self._process is None:
            if self._start_s is not None and now_s >= self._start_s:
                self._start(now_s)
        elif (code := self._process.poll()) is not None:
            self._ended(code if code >= 0 else 128 - code, now_s)
        elif now_s >= self._probe_s:
            self.is_ready = self._probe()
            period_s = float(self.spec.get("readinessProbe", {}).get("periodSeconds", 10))
            self._probe_s = now_s + (period_s if self.is_ready else 0.1)

    def forget_to_start(self) -> None:
        """Start it no more; nothing changes if it runs."""
        if self._process is None and self._start_s is not None:
            self._start_s = None
            self.state = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}

    def send(self, number: int, reason: str = "") -> None:
        """Signal its process 1, which SIGKILL ends with all others in there."""
        self._killed_for = reason or self._killed_for
        if number != signal.SIGKILL:
            self._wait_for_command()
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def reap(self) -> None:
        """Kill it, and leave nothing that waits for it."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)

    def status(self) -> Object:
        return {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "ready": self.is_ready,
            "started": "running" in self.state,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }

    def _start(self, now_s: float) -> None:
        if self.spec.get("image", "").startswith("missing"):
            is_first = self.state["waiting"]["reason"] == "ContainerCreating"
            reason = "ErrImagePull" if is_first else "ImagePullBackOff"
            message = f"{self.spec['image']}: not found"
            self.state = {"waiting": {"reason": reason, "message": message}}
            self._start_s = now_s + 2.0
            return
        (self.pod.directory / f"{self.name}.layer").mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        self._probe_s, self._killed_for = now_s, ""
        self.state = {"running": {"startedAt": moment()}}

    def _ended(self, code: int, now_s: float) -> None:
        started = self.state["running"]["startedAt"]
        reason = self._killed_for or ("Completed" if code == 0 else "Error")
        end: Object = {"exitCode": code, "reason": reason, "startedAt": started}
        end["finishedAt"] = moment()
        if message := self._termination_message(code):
            end["message"] = message
        self.state, self._process, self.is_ready = {"terminated": end}, None, False
        policy = self.pod.body["spec"].get("restartPolicy", "Always")
        if policy == "Never" or (policy == "OnFailure" and code == 0) or self.pod.is_ending:
            self._start_s = None
            return
        self.last_state = self.state
        self.state = {"waiting": {"reason": "CrashLoopBackOff"}}
        self._start_s = now_s + min(0.5 * 2.0**self.restarts, 10)
        self.restarts += 1

    def _termination_message(self, code: int) -> str:
        said = self._message.read_text(errors="replace")[:MOST_MESSAGE_BYTES]
        policy = self.spec.get("terminationMessagePolicy")
        if not said and code and policy == "FallbackToLogsOnError":
            said = self.log.read_text(errors="replace")[-2048:]
        return said

    @property
    def _message(self) -> Path:
        return self.pod.directory / f"{self.name}.message"

    def _wait_for_command(self) -> None:
        """Return once process 1 is the command, and no more what prepares it."""
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s and self._process is not None:
            if self._process.poll() is not None:
                return
            with contextlib.suppress(OSError):
                pid = self.pid
                program = Path(f"/proc/{pid}/exe").readlink().name
                is_inside = Path(f"/proc/{pid}/root").readlink() != Path("/")
                if is_inside and program not in ("chroot", "setpriv", "env"):
                    return
            time.sleep(0.002)

    def _probe(self) -> bool:
        probe = self.spec.get("readinessProbe", {})
        if not probe:
            return True
        if "tcpSocket" in probe:
            with self.pod.kubelet.ground.entered(), socket.socket() as tried:
                tried.settimeout(1)
                return tried.connect_ex((self.pod.ip, self._port(probe["tcpSocket"]["port"]))) == 0
        if "httpGet" in probe:
            asked = probe["httpGet"]
            with contextlib.suppress(OSError, http.client.HTTPException):
                with self.pod.kubelet.ground.entered():
                    port = self._port(asked["port"])
                    line = http.client.HTTPConnection(self.pod.ip, port, timeout=1)
                    line.connect()
                with contextlib.closing(line):
                    line.request("GET", asked.get("path", "/"))
                    return line.getresponse().status < 400
            return False
        raise NotImplementedError(f"the test kubelet knows no such probe: {probe}")

    def _port(self, port: int | str) -> int:
        names = {one.get("name"): one["containerPort"] for one in self.spec.get("ports", [])}
        return int(names.get(port, port))

    # --- what it is started with ----------------------------------------------------------

    def _command(self) -> list[str]:
        environment = self._environment()
        security = {
            **self.pod.body["spec"].get("securityContext", {}),
            **self.spec.get("securityContext", {}),
        }
        user = security.get("runAsUser", 0)
        group = security.get("runAsGroup", 0)
        groups = {group, *security.get("supplementalGroups", []), security.get("fsGroup", group)}
        words = [*self.spec.get("command", []), *self.spec.get("args", [])]
        inside = ["env", "-C", self.spec["workingDir"]] if "workingDir" in self.spec else []
        return [
            *self.pod.entering(),
            *(
                "unshare",
                "--mount",
                "--pid",
                "sh",
                "-c",
                WAIT_FOR_CHILD,
                str(HERE / "container.sh"),
            ),
            str(self.pod.directory / f"{self.name}.layer"),
            *(str(user), str(group), ",".join(map(str, sorted(groups)))),
            "read-only" if security.get("readOnlyRootFilesystem") else "writable",
            *(str(self._mounts()), "--"),
            *inside,
            *(expanded(word, environment) for word in words),
        ]

    def _mounts(self) -> Path:
        """Write what is mounted where."""
        self._message.unlink(missing_ok=True)
        self._message.touch()
        self._message.chmod(0o666)
        lines = [
            f"{self.pod.hosts_file}\t/etc/hosts\trw\n",
            f"{self.pod.kubelet.program}\t/usr/local/bin/pliant\tro\n",
        ]
        for each in self.spec.get("volumeMounts", []):
            volume = self.pod.volumes.path(each["name"])
            source = volume / each.get("subPath", "")
            if not source.exists():  # a directory like its volume is made, as a kubelet does
                source.mkdir()
                shutil.copymode(volume, source)
            access = "ro" if each.get("readOnly") else "rw"
            lines.append(f"{source}\t{each['mountPath']}\t{access}\n")
        target = self.spec.get("terminationMessagePath", "/dev/termination-log")
        lines.append(f"{self._message}\t{target}\trw\n")
        path = self.pod.directory / f"{self.name}.mounts"
        path.write_text("".join(lines))
        return path

    def _environment(self) -> dict[str, str]:
        found = {
            "PATH": PATH,
            "HOSTNAME": self.pod.hostname,
            "HOME": "/",
            "KUBERNETES_SERVICE_HOST": ADDRESS,
            "KUBERNETES_SERVICE_PORT": "6443",
        }
        for each in self.spec.get("env", []):
            found[each["name"]] = self._value(each, found)
        return found

    def _value(self, entry: Object, before: dict[str, str]) -> str:
        source = entry.get("valueFrom")
        if source is None:
            return expanded(entry.get("value", ""), before)
        if "fieldRef" in source:
            return field(self.pod.body, source["fieldRef"]["fieldPath"], self.pod.ip)
        raise NotImplementedError(f"the test kubelet knows no such source: {source}")


class Pod:
    """One pod on a node of this kubelet."""

    def __init__(self, kubelet: Kubelet, body: Object, number: int) -> None:
        self.kubelet, self.body, self.number = kubelet, body, number
        meta = body["metadata"]
        self.namespace, self.uid = meta["namespace"], meta["uid"]
        self.name = f"{self.namespace}/{meta['name']}"
        self.node: str = body["spec"]["nodeName"]
        self.hostname: str = body["spec"].get("hostname", meta["name"])
        self.ip = f"10.88.{1 + number // 250}.{number % 250 + 1}"
        self.directory = kubelet.directory / f"{self.namespace}_{meta['name']}_{self.uid[:8]}"
        self.hosts_file = self.directory / "hosts"
        self.times = Times()
        if "initContainers" in body["spec"]:
            raise NotImplementedError("the test kubelet has no init containers")
        self.containers = [Container(self, spec) for spec in body["spec"]["containers"]]
        volumes, claims = self.directory / "volumes", kubelet.directory / "claims"
        self.volumes = Volumes(kubelet.api, body, self.ip, volumes, claims)
        self.is_gone = False
        """The API server has it no more; another of its name may be there."""
        self._started = moment()
        self._sandbox: subprocess.Popen[bytes] | None = None
        self._news = threading.Event()
        self._kill_s: float | None = None
        self._told: Object | None = None
        self._conditions: dict[str, Object] = {}
        self._thread = threading.Thread(target=self._run, name=f"pod {self.name}", daemon=True)

    def __repr__(self) -> str:
        told = (self._told or {}).get("phase")
        boxes = ", ".join(f"{one.name} {one.pid} {one.state}" for one in self.containers)
        thread = "" if self._thread.is_alive() else " without its thread"
        return f"{self.name} {self.times}{thread}, told as {told}: {boxes}"

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether somebody has deleted it."""
        return self.is_gone or "deletionTimestamp" in self.body["metadata"]

    @property
    def is_ready(self) -> bool:
        return all(one.is_ready for one in self.containers)

    @property
    def is_on_network(self) -> bool:
        return self._sandbox is not None

    def renew(self, body: Object) -> None:
        """Take what the API server has of it now; tell it again what others have changed.

        Of a node that was not heard for a while, the controllers say that no pod is ready.
        """
        self.body = body
        if self._told is not None and _ready_in(body["status"]) != _ready_in(self._told):
            self._told = None
        self._news.set()

    def forget(self) -> None:
        """Take note that the API server has it no more: whoever forced that does not wait."""
        self.times.gone, self.is_gone = time.monotonic(), True
        self._news.set()

    def die(self, reason: str = "") -> None:
        """Lose all processes at once; what the API server is told then is the kubelet's matter."""
        for each in self.containers:
            each.send(signal.SIGKILL, reason)

    def lose_power(self) -> None:
        """Lose network and processes at once: nobody hears that its connections end."""
        self._set_link("down")
        self.die()

    def have_power(self) -> None:
        self._set_link("up")
        self._news.set()

    def _set_link(self, state: str) -> None:
        words = ["nsenter", f"--target={self.kubelet.ground.init}", "--net", "ip", "link", "set"]
        if self._sandbox is not None:
            subprocess.run([*words, f"pod{self.number}", state], check=False, capture_output=True)

    def join(self) -> None:
        self._thread.join(10)

    def entering(self) -> list[str]:
        """Return the words before a command that is to run in its sandbox."""
        assert self._sandbox is not None
        target = child_of(self._sandbox.pid)
        return [
            "nsenter",
            f"--target={target}",
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--",
        ]

    def write_hosts(self, others: str) -> None:
        """Name it and others; the bytes are replaced, not the file, which is mounted."""
        text = f"127.0.0.1 localhost\n{self.ip} {self.hostname}\n{others}"
        with contextlib.suppress(FileNotFoundError), self.hosts_file.open("r+") as file:
            file.write(text)
            file.truncate()

    # --- its life -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._live()
        except Exception as error:  # the tests fail by it when the cluster ends
            self.kubelet.problems.append(f"{self.name}: {error!r}")
        finally:
            self._end_sandbox()

    def _live(self) -> None:
        is_made = False
        while not (self.is_gone or self.kubelet.is_closing):
            if not self.kubelet.is_alive(self.node):
                self.die()
            elif not is_made and not self.is_ending:
                is_made = self._make()
            elif self._is_over():
                self._end_sandbox()
                self._tell()
                if self.is_ending:
                    self._confirm()
            else:
                self._look()
                self._tell()
            quiet = 5.0 if self._is_over() and self._told is not None else POLL_S
            self._news.wait(quiet if is_made or self.is_ending else 0.1)
            self._news.clear()
        for each in self.containers:
            each.reap()

    def _make(self) -> bool:
        """Make sandbox and volumes; return False if what they show is not there yet."""
        shutil.rmtree(self.directory / "volumes", ignore_errors=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self.volumes.lay_out()
        except ApiError as error:
            if error.code != 404:
                raise
            self._tell()
            return False
        except AWAY:
            return False
        self.hosts_file.touch()
        self._sandbox = subprocess.Popen(
            [
                *(*self.kubelet.ground.entering(), "--", "unshare", "--net", "--uts", "--ipc"),
                *("sh", str(HERE / "sandbox.sh"), str(self.number), self.ip, self.hostname),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._sandbox.stdout is not None
        if not self._sandbox.stdout.readline():
            raise RuntimeError("its sandbox was not made")
        self.kubelet.rewrite_hosts()
        return True

    def _look(self) -> None:
        now_s = time.monotonic()
        if self.is_ending:
            self._end(now_s)
        for each in self.containers:
            each.look(now_s)
        if self.times.running is None and all("running" in each.state for each in self.containers):
            self.times.running = now_s
        if self._is_over():
            self.times.ended = time.monotonic()

    def _end(self, now_s: float) -> None:
        """Tell containers to end; kill them when the grace period has passed."""
        grace_s = float(self.body["metadata"].get("deletionGracePeriodSeconds", 30))
        for each in self.containers:
            each.forget_to_start()
            if self._kill_s is None:
                each.send(signal.SIGTERM)
        if self._kill_s is None:
            self.times.told_to_end = time.monotonic()
        self._kill_s = min(self._kill_s or now_s + grace_s, now_s + grace_s)
        if now_s >= self._kill_s:
            self.die()

    def _is_over(self) -> bool:
        if self._sandbox is None and self.times.ended is None:
            return self.is_ending  # never began
        return all(each.is_over for each in self.containers)

    def _end_sandbox(self) -> None:
        if self._sandbox is None:
            return
        if (child := child_of(self._sandbox.pid)) is not None:
            os.kill(child, signal.SIGKILL)
        self._sandbox.communicate()
        self._sandbox = None
        self.kubelet.rewrite_hosts()

    # --- what the API server is told ------------------------------------------------------

    def _tell(self) -> None:
        """Tell what has changed; what fails is told again at the next look."""
        status = self._status()
        if status == self._told or self.is_gone:
            return
        before = self._told or {}
        body = {"metadata": {"uid": self.uid}, "status": status}
        try:
            self.kubelet.api.patch("Pod", self.name, body, "strategic", part="status")
        except ApiError as error:
            if error.code not in (404, 409, 429, 500, 503, 504):
                raise
            return
        except AWAY:
            return
        self._told = status
        if before.get("conditions") != status["conditions"]:
            self.kubelet.rewrite_hosts()

    def _status(self) -> Object:
        is_made = self._sandbox is not None or self.times.ended is not None
        status: Object = {
            "phase": self._phase(),
            "startTime": self._started,
            "hostIP": ADDRESS,
            "containerStatuses": [each.status() for each in self.containers],
            "conditions": [
                self._condition("Initialized", is_made),
                self._condition("ContainersReady", self.is_ready),
                self._condition("Ready", self.is_ready),
            ],
        }
        if is_made:
            status |= {"podIP": self.ip, "podIPs": [{"ip": self.ip}]}
        return status

    def _phase(self) -> str:
        if all(each.is_over for each in self.containers):
            return "Failed" if any(each.exit_code for each in self.containers) else "Succeeded"
        has_run = any("waiting" not in each.state or each.restarts for each in self.containers)
        return "Running" if has_run else "Pending"

    def _condition(self, kind: str, is_so: bool) -> Object:
        """Return a condition with when it last changed."""
        before = self._conditions.get(kind)
        if before is None or before["status"] != str(is_so):
            self._conditions[kind] = {
                "type": kind,
                "status": str(is_so),
                "lastTransitionTime": moment(),
            }
        return self._conditions[kind]

    def _confirm(self) -> None:
        """Let the API server forget it."""
        options: dict[str, Any] = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        with contextlib.suppress(ApiError, *AWAY):  # or it is gone, or asked again
            self.kubelet.api.delete("Pod", self.name, **options)


def _ready_in(status: Object) -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ())
    )


def expanded(text: str, environment: dict[str, str]) -> str:
    """Return a text with each ``$(NAME)`` replaced that the environment has."""
    return re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda m: environment.get(m[1], m[0]), text)
