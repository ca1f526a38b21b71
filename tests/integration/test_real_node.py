"""A real kubelet and containerd: pods run on exactly the planned GPUs, through kills, and nothing is left behind."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.real_node import PODS, RealBed, skip_without_node

from kgwe.local.host import processes
from kgwe.local.node.node import NAME
from kgwe.local.node.settings_files import BUSYBOX_IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"


@pytest.fixture(scope="module")
def bed(cluster_root: Path) -> Iterator[RealBed]:
    skip_without_node()
    with RealBed(f"test-{os.getpid()}-real", cluster_root) as made:
        made.node.start(dra=True)
        yield made


def make_pod(name: str, command: str, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", command]}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def test_workloads_get_exactly_the_planned_gpus(bed: RealBed):
    for number, count in enumerate((3, 1, 2, 2)):
        bed.submit(f"w{number}", count, seconds=10)
    bed.until(lambda: list(bed.phases().values()) == ["Running"] * 4)
    pods = bed.request("GET", PODS)["items"]
    assert sorted(len(bed.planned_uuids(pod)) for pod in pods) == [1, 2, 2, 3]
    for pod in pods:
        assert bed.printed_uuids(pod) == bed.planned_uuids(pod)
    held = bed.until(lambda: _list_held(bed) if len(_list_held(bed)) == 4 else None)
    assert set(held) == {f"default/{pod['metadata']['name']}" for pod in pods}
    bed.clear()


def _list_held(bed: RealBed) -> list[str]:
    status = bed.request("GET", f"/apis/kgwe.nvidia.io/v1/gpunodes/{NAME}")["status"]
    return [each["pod"] for each in status.get("held", ())]


def test_services_logs_and_exec_work(bed: RealBed):
    serve = "mkdir -p /tmp/w; echo hello > /tmp/w/index.html; echo ready; httpd -f -p 8080 -h /tmp/w"
    bed.request("POST", PODS, make_pod("web", serve))
    ports = [{"port": 80, "targetPort": 8080}]
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}}
    bed.request("POST", "/api/v1/namespaces/default/services", service)
    ask = "until wget -q -O - http://web.default.svc.cluster.local; do sleep 1; done"
    bed.request("POST", PODS, make_pod("client", ask))
    bed.until(lambda: bed.request("GET", f"{PODS}/client")["status"]["phase"] == "Succeeded")
    assert bed.kubectl("logs", "client").stdout == "hello\n"
    done = bed.kubectl("exec", "web", "--", "cat", "/tmp/w/index.html")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    bed.request("DELETE", "/api/v1/namespaces/default/services/web")
    bed.clear()


def test_pods_survive_kills_and_waiting_work_runs_afterwards(bed: RealBed):
    bed.submit("long", 8, seconds=8)
    bed.until(lambda: bed.phases()["long"] == "Running")
    (before,) = bed.pods_of("long")
    bed.submit("next", 8)
    bed.kill("kubelet")
    bed.kill("agent")
    bed.until(lambda: bed.node.find_process("kubelet"))
    bed.until(lambda: bed.allocatable() == 8)
    bed.until(lambda: set(bed.phases().values()) == {"Succeeded"})
    (after,) = bed.pods_of("long")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    for name in ("long", "next"):
        (pod,) = bed.pods_of(name)
        assert bed.printed_uuids(pod) == set(bed.gpu_uuids().values())
    bed.clear()


def test_an_init_container_and_its_pod_share_the_planned_gpus(bed: RealBed):
    first = {
        "name": "first",
        "image": BUSYBOX_IMAGE,
        "command": ["sh", "-c", "echo GPUS=$NVIDIA_VISIBLE_DEVICES"],
        "resources": {"limits": {"nvidia.com/gpu": 2}},
    }
    bed.request("POST", PODS, make_pod("init", "echo GPUS=$NVIDIA_VISIBLE_DEVICES", 2, initContainers=[first]))
    bed.until(lambda: bed.request("GET", f"{PODS}/init")["status"]["phase"] == "Succeeded")
    assert bed.kubectl("logs", "init", "-c", "first").stdout == bed.kubectl("logs", "init", "-c", "main").stdout
    bed.clear()


def test_dra_workloads_get_exactly_the_planned_gpus(bed: RealBed):
    _run_claims(bed, 6, random.Random(3))


@pytest.mark.soak
def test_fifty_dra_workloads_get_exactly_the_planned_gpus(bed: RealBed):
    _run_claims(bed, 50, random.Random(5))


def _run_claims(bed: RealBed, count: int, rng: random.Random) -> None:
    for number in range(count):
        bed.submit(f"d{number}", rng.choice((1, 1, 2, 3, 4)), seconds=1, deviceMode="DRA")
    bed.until(lambda: set(bed.phases().values()) == {"Succeeded"}, patience_s=120 + 6 * count)
    exact = 0
    for number in range(count):
        (pod,) = bed.pods_of(f"d{number}")
        assert "nvidia.com/gpu" not in pod["spec"]["containers"][0]["resources"].get("limits", {})
        exact += bed.printed_uuids(pod) == bed.planned_uuids(pod) != set()
    assert exact == count
    bed.clear()
    bed.until(lambda: not bed.request("GET", CLAIMS)["items"])


def test_claims_share_a_gpu_by_its_capacity(bed: RealBed):
    bed.request_sharing(2)
    bed.until(lambda: "gpu-7-shared" in bed.published())
    request = {"name": "gpu", "exactly": {"deviceClassName": "shared.kgwe.nvidia.io"}}
    template = {"metadata": {"name": "one-share"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    bed.request("POST", TEMPLATES, template)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-share"}]
    for number in range(3):
        pod = make_pod(f"s{number}", "echo GPUS=$NVIDIA_VISIBLE_DEVICES; sleep 600", resourceClaims=claims)
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        bed.request("POST", PODS, pod)
    bed.until(lambda: _list_phases(bed) == ["Running"] * 3)
    pods = bed.request("GET", PODS)["items"]
    held = [next(iter(bed.printed_uuids(pod))) for pod in pods]
    assert sorted(held.count(uuid) for uuid in set(held)) == [1, 2], held
    bed.request("DELETE", f"{TEMPLATES}/one-share")
    bed.request_sharing(None)
    bed.clear()
    bed.until(lambda: "gpu-7" in bed.published() and bed.allocatable() == 8)


def _list_phases(bed: RealBed) -> list[str]:
    return [each["status"]["phase"] for each in bed.request("GET", PODS)["items"]]


def test_down_after_a_kill_leaves_nothing(bed: RealBed):
    """The last test of the module in which the node runs; `bed` starts it again for others."""
    bed.node.start(dra=True)
    bed.request("POST", PODS, make_pod("stays", "sleep 600", 1))
    bed.until(lambda: bed.request("GET", f"{PODS}/stays")["status"]["phase"] == "Running")
    spec = bed.node.read_spec()
    assert spec is not None
    processes.kill(bed.cluster.state().sidecars["node"])
    assert bed.node.stop()
    bed.until(lambda: spec.addresses.link not in subprocess.check_output(["ip", "link"], text=True))
    assert spec.cgroup not in subprocess.check_output(["find", "/sys/fs/cgroup", "-maxdepth", "2"], text=True)
    assert str(bed.node.folder) not in Path("/proc/self/mountinfo").read_text()
    assert spec.addresses.pods not in subprocess.check_output(["ip", "route"], text=True)
    assert not [each for each in processes.find_marked(bed.cluster.directory) if each.name.startswith("node")]
    assert not bed.request("GET", PODS)["items"]
    bed.until(lambda: NAME not in {each["metadata"]["name"] for each in bed.request("GET", "/api/v1/nodes")["items"]})
    assert not bed.node.stop()
    bed.node.start(dra=True)


@pytest.mark.soak
def test_forty_workloads_under_ten_kills_all_succeed(bed: RealBed):
    rng = random.Random(7)
    for number in range(40):
        bed.submit(f"k{number}", rng.randint(1, 4), seconds=rng.randint(1, 4))
    for _ in range(10):
        time.sleep(rng.uniform(2, 8))  # a kill at any moment is the point
        bed.kill(rng.choice(("kubelet", "agent", "containerd")))
    bed.until(lambda: set(bed.phases().values()) <= {"Succeeded", "Failed"}, patience_s=400)
    assert sorted(bed.phases().values()) == ["Succeeded"] * 40, bed.phases()
    for number in range(40):
        done = [each for each in bed.pods_of(f"k{number}") if each["status"]["phase"] == "Succeeded"]
        assert done
        for pod in done:
            assert bed.printed_uuids(pod) == bed.planned_uuids(pod)
    bed.clear()
