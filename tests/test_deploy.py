"""The files of `deploy/`: that those who read them would take them, and that they fit together.

Kubernetes' own schemas come with `kubernetes-validate`. KubeRay's are not among them: `RAY_CLUSTER`
has the fields that we use, and the pods inside are checked as Kubernetes' own. The recipe for Slurm
is run here as far as it is ours: what `srun` would start is started by hand.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import jsonschema
import kubernetes_validate as kubernetes
import numpy as np
import pytest
import typer
import yaml
from echoic import rendezvous
from echoic.cli.app import app
from echoic.cli.config import read
from polling import free_port, until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
GUIDE = ROOT / "docs" / "guides" / "deploy.md"
SCRIPTS = [DEPLOY / "slurm" / "replay.sbatch", DEPLOY / "slurm" / "shard.sh"]
# The oldest release that is still common, and the newest that there are schemas of.
RELEASES = ("1.30", "1.37")
PATIENCE = 60.0


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """A schema of an object that has nothing else."""
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


TEXT, WHOLE = {"type": "string"}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
# Pods are looked at by Kubernetes' schema.
POD = {"type": "object"}
RAY_CLUSTER = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=closed(["name"], name=TEXT, labels=TEXTS, annotations=TEXTS),
    spec=closed(
        ["headGroupSpec"],
        rayVersion=TEXT,
        enableInTreeAutoscaling={"type": "boolean"},
        headGroupSpec=closed(["rayStartParams", "template"], rayStartParams=TEXTS, template=POD),
        workerGroupSpecs={
            "type": "array",
            "items": closed(
                ["groupName", "maxReplicas", "minReplicas", "rayStartParams", "template"],
                groupName=TEXT,
                replicas=WHOLE,
                minReplicas=WHOLE,
                maxReplicas=WHOLE,
                numOfHosts=WHOLE,
                rayStartParams=TEXTS,
                template=POD,
            ),
        },
    ),
)


def documents(name: str) -> list[dict[str, Any]]:
    """The documents of a manifest."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The templates of pods in a document."""
    spec = document.get("spec", {})
    if document["kind"] == "RayCluster":
        groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
        return [group["template"] for group in groups]
    return [spec["template"]] if "template" in spec else []


def check(document: dict[str, Any], release: str) -> None:
    """Refuse a document that Kubernetes, or KubeRay, would not take, or would ignore parts of."""
    if document["kind"] != "RayCluster":
        kubernetes.validate(document, release, strict=True)
        return
    jsonschema.Draft202012Validator(RAY_CLUSTER).validate(document)
    for pod in pods(document):
        whole = {"apiVersion": "v1", "kind": "PodTemplate", "template": pod}
        kubernetes.validate(whole, release, strict=True)


MANIFESTS = [
    pytest.param(document, id=f"{path.relative_to(DEPLOY)}: {document['kind']}")
    for path in sorted(DEPLOY.rglob("*.yaml"))
    for document in documents(str(path.relative_to(DEPLOY)))
]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("document", MANIFESTS)
def test_a_manifest_is_what_its_kind_has(document: dict[str, Any], release: str) -> None:
    check(document, release)


@pytest.mark.parametrize(
    ("name", "kind", "path", "value"),
    [
        ("kubernetes/servers.yaml", "StatefulSet", ["spec", "replica"], 2),
        ("kubernetes/servers.yaml", "Service", ["spec", "clusterIp"], "None"),
        ("kubernetes/clients.yaml", "Job", ["spec", "template", "spec", "containers"], {}),
        ("kuberay/cluster.yaml", "RayCluster", ["spec", "headGroupSpec", "replicas"], 1),
        ("kuberay/cluster.yaml", "RayCluster", ["spec", "rayVersion"], 2.6),
        (
            "kuberay/cluster.yaml",
            "RayCluster",
            ["spec", "headGroupSpec", "template", "spec", "container"],
            [],
        ),
    ],
)
def test_a_mistake_in_a_manifest_is_found(
    name: str, kind: str, path: list[str], value: object
) -> None:
    [document] = [copy.deepcopy(one) for one in documents(name) if one["kind"] == kind]
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        check(document, RELEASES[-1])


@pytest.mark.parametrize("document", MANIFESTS)
def test_what_a_container_mounts_is_there(document: dict[str, Any]) -> None:
    claims = document.get("spec", {}).get("volumeClaimTemplates", [])
    for pod in pods(document):
        volumes = [*pod["spec"].get("volumes", []), *(claim["metadata"] for claim in claims)]
        names = {volume["name"] for volume in volumes}
        for container in pod["spec"]["containers"]:
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted <= names
        assert names == {
            mount["name"]
            for container in pod["spec"]["containers"]
            for mount in container.get("volumeMounts", [])
        }


@pytest.mark.parametrize("document", MANIFESTS)
def test_a_pod_that_keeps_items_may_write_to_its_volume(document: dict[str, Any]) -> None:
    for pod in pods(document):
        keeps = document.get("spec", {}).get("volumeClaimTemplates") or [
            volume for volume in pod["spec"].get("volumes", []) if "persistentVolumeClaim" in volume
        ]
        # A new volume is root's, and the containers run as somebody else.
        assert not keeps or "fsGroup" in pod["spec"].get("securityContext", {})


@pytest.fixture
def kinds() -> dict[str, dict[str, Any]]:
    """The documents of the servers, by kind."""
    return {document["kind"]: document for document in documents("kubernetes/servers.yaml")}


def test_the_parts_of_the_servers_are_about_the_same_pods(kinds: dict[str, Any]) -> None:
    servers = kinds["StatefulSet"]["spec"]
    labels = servers["template"]["metadata"]["labels"]
    assert servers["selector"]["matchLabels"] == labels
    assert kinds["Service"]["spec"]["selector"] == labels
    assert kinds["Service"]["metadata"]["name"] == servers["serviceName"]
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    policy = kinds["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    [client, _] = policy["ingress"]
    [wanted] = client["from"]
    for document in documents("kubernetes/clients.yaml"):
        for pod in pods(document):
            assert wanted["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_the_servers_configuration_fits_their_pods(kinds: dict[str, Any], tmp_path: Path) -> None:
    [(name, text)] = kinds["ConfigMap"]["data"].items()
    (tmp_path / name).write_text(text)
    config = read(tmp_path / name)
    servers = kinds["StatefulSet"]["spec"]["template"]["spec"]
    [container] = servers["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    [listen] = config.listen
    assert listen.address == f"tcp://0.0.0.0:{ports['echoic']}"
    assert config.metrics == f"0.0.0.0:{ports['metrics']}"
    published = {port["name"]: port["port"] for port in kinds["Service"]["spec"]["ports"]}
    assert published == ports
    policy = kinds["NetworkPolicy"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in policy] == list(ports.values())
    places = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert config.checkpoints is not None
    assert config.journal is not None
    assert listen.token_file is not None
    assert places["state"] in Path(config.checkpoints.path).parents
    assert places["state"] in config.journal.parents
    assert places["secret"] in listen.token_file.parents
    assert str(places["tables"] / name) in container["args"]
    assert config.drain < servers["terminationGracePeriodSeconds"]
    probe = container["readinessProbe"]["exec"]["command"]
    assert f"tcp://127.0.0.1:{ports['echoic']}" in probe
    assert str(listen.token_file) in probe


def test_commands_in_manifests_exist(kinds: dict[str, Any]) -> None:
    [container] = kinds["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    group: Any = typer.main.get_command(app)
    for words in (container["args"], container["readinessProbe"]["exec"]["command"][1:]):
        command = group.commands[words[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


def test_clients_are_told_every_server_by_its_name(
    kinds: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed, *programs = documents("kubernetes/clients.yaml")
    [(key, text)] = listed["data"].items()
    (tmp_path / key).write_text(text)
    monkeypatch.setenv("ECHOIC_ADDRESSES_FILE", str(tmp_path / key))
    servers = kinds["StatefulSet"]
    name, service = servers["metadata"]["name"], servers["spec"]["serviceName"]
    found = rendezvous.addresses()
    assert isinstance(found, rendezvous.AddressFile)
    assert found() == [
        f"tcp://{name}-{number}.{service}:5555" for number in range(servers["spec"]["replicas"])
    ]
    for pod in [pod for program in programs for pod in pods(program)]:
        [container] = pod["spec"]["containers"]
        told = {variable["name"]: variable["value"] for variable in container["env"]}
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert told == {
            "ECHOIC_ADDRESSES_FILE": f"{places['servers']}/{key}",
            "ECHOIC_TOKEN_FILE": f"{places['secret']}/token",
        }
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert volumes["servers"]["configMap"]["name"] == listed["metadata"]["name"]


@pytest.mark.parametrize("path", ["tables.toml", "slurm/tables.toml"])
def test_the_file_of_a_server_can_be_used(path: str) -> None:
    config = read(DEPLOY / path)
    assert [table.name for table in config.tables] == ["replay"]
    assert config.tables[0].durability == "async"
    assert config.drain == 10


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    text = (DEPLOY / "systemd" / "echoic.service").read_text(encoding="utf-8")
    assert text.count("/opt/echoic/bin/echoic") == 1
    # It wants the program to be there.
    unit = tmp_path / "echoic.service"

    def verify(source: str) -> subprocess.CompletedProcess[str]:
        unit.write_text(source.replace("/opt/echoic/bin/echoic", sys.executable))
        command = ["systemd-analyze", "verify", "--man=no", str(unit)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    done = verify(text)
    told = [line for line in done.stderr.splitlines() if "echoic" in line]
    assert (done.returncode, told) == (0, [])
    assert "StateDirectry" in verify(text.replace("StateDirectory", "StateDirectry")).stderr


def test_the_image_is_described_as_hadolint_wants() -> None:
    lint("hadolint", DEPLOY / "container" / "Dockerfile")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_one_that_bash_and_shellcheck_take(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=PATIENCE)
    lint("shellcheck", script)
    assert os.access(script, os.X_OK)


def lint(program: str, path: Path) -> None:
    """Run a linter of a package, which is beside the interpreter."""
    found = shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found is not None, f"{program} is not installed, which the dependency group test has"
    done = subprocess.run(
        [found, str(path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_guide_shows_every_file() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    files = {str(path.relative_to(ROOT)) for path in DEPLOY.rglob("*") if path.is_file()}
    shown = {line.split('"')[1] for line in guide.splitlines() if line.startswith("--8<--")}
    assert shown == files
    assert all(f"`{file}`" in guide for file in files)


# Slurm's recipe, without Slurm.


class Shards:
    """The shards as `srun` would start them, with the variables that it and the script set."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(count)]
        (folder / "token").write_text("a secret of some length\n")
        self._running: list[subprocess.Popen[str]] = []

    @property
    def environment(self) -> dict[str, str]:
        """What the clients are told."""
        names = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return {"ECHOIC_ADDRESSES": names, "ECHOIC_TOKEN_FILE": str(self.folder / "token")}

    def start(self) -> None:
        """Start all of them, and wait until they listen."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        for number, port in enumerate(self.ports):
            told = {
                **os.environ,
                **self.environment,
                "PATH": path,
                "REPLAY_STATE": str(self.folder),
                "REPLAY_PORT": str(port),
                "SLURM_PROCID": str(number),
            }
            command = [str(DEPLOY / "slurm" / "shard.sh")]
            self._running.append(
                subprocess.Popen(command, env=told, stdout=subprocess.PIPE, text=True)
            )
        for process, port in zip(self._running, self.ports, strict=True):
            assert process.stdout is not None
            assert process.stdout.readline() == f"listening tcp://0.0.0.0:{port}\n"

    def end(self, kind: signal.Signals = signal.SIGTERM) -> list[int]:
        """End all of them by a signal; with what status each did."""
        for process in self._running:
            process.send_signal(kind)
        statuses = []
        for process in self._running:
            statuses.append(process.wait(PATIENCE))
            assert process.stdout is not None
            process.stdout.close()
        self._running.clear()
        return statuses


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    """Two shards that keep what they have in a folder of the test."""
    made = Shards(tmp_path, 2)
    yield made
    made.end(signal.SIGKILL)


WORKER = """
import numpy as np
import echoic

with echoic.connect(timeout=60.0) as client:
    for step in range(100):
        item = {"obs": np.full(4, step, np.float32), "action": step % 2, "reward": float(step)}
        client.table("replay").add(item)
"""


def test_a_job_on_slurm_finds_its_tables_and_has_them_again(
    shards: Shards, run_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards.start()
    # As every task of the workers is.
    done = run_script(WORKER, env={**os.environ, **shards.environment})
    assert (done.returncode, done.stderr) == (0, "")
    assert shards.end() == [0, 0]
    assert all((shards.folder / f"shard-{number}" / "checkpoints").is_dir() for number in (0, 1))
    # The job is submitted again.
    shards.start()
    for name, value in shards.environment.items():
        monkeypatch.setenv(name, value)
    started = time.monotonic()
    with echoic.connect(timeout=PATIENCE) as client:
        assert [shard.size for shard in client.table("replay").stats().shards] == [50, 50]
        batch = client.table("replay").sample(64)
        assert np.array_equal(batch.data["obs"][:, 0], batch.data["reward"])
    assert time.monotonic() - started < PATIENCE
    assert shards.end() == [0, 0]


SRUN = """#!{python}
import os, signal, sys

name = sys.argv[-1]


def end(*_):
    with open("ended", "a") as file:
        file.write(name + "\\n")
    os._exit({status} if name == "learner.py" else 0)


signal.signal(signal.SIGTERM, end)
open(f"{{os.path.basename(name)}}.began", "w").close()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_job_on_slurm_that_is_told_to_end_has_its_learners_status(
    tmp_path: Path, status: int
) -> None:
    programs = {
        "srun": SRUN.format(python=sys.executable, status=status),
        "scontrol": "#!/bin/bash\nprintf '%s\\n' node-{1..4}\n",
    }
    for name, source in programs.items():
        (tmp_path / name).write_text(source)
        (tmp_path / name).chmod(0o755)
    told = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "REPLAY_STATE": str(tmp_path / "state"),
        "SLURM_JOB_NODELIST": "node-[1-4]",
    }
    job = subprocess.Popen(
        [str(DEPLOY / "slurm" / "replay.sbatch")], env=told, cwd=tmp_path, start_new_session=True
    )
    try:
        names = ["shard.sh", "worker.py", "learner.py"]
        until(lambda: all((tmp_path / f"{name}.began").exists() for name in names))
        # It may have begun all three, and not yet be ready to take the signal.
        until(lambda: catches(job.pid, signal.SIGTERM))
        job.send_signal(signal.SIGTERM)
        assert job.wait(PATIENCE) == status
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait(PATIENCE)
    ended = (tmp_path / "ended").read_text().splitlines()
    assert sorted(ended[:2]) == ["learner.py", "worker.py"]
    assert ended[2:] == ["./shard.sh"]


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [mask] = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)
