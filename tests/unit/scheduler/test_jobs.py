"""The Job of a workload: names, labels, GPUs, the pin to its node."""

import copy
import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe import errors
from kgwe.apps.scheduler import jobs
from kgwe.apps.scheduler.workload import from_kgwe, from_warp
from kgwe.kube import resources
from kgwe.kube.api.core import Job, JobStatus
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.api.warp import WarpGPUWorkload, WarpGPUWorkloadSpec
from kgwe.model import amounts

UID = "0f1e2d3c-aaaa-bbbb-cccc-0123456789ab"
IMAGE = "example.com/default:1"


def warp(name="w", model="llama2", gpus=2):
    meta = ObjectMeta(name=name, namespace="ns", uid=UID, generation=4)
    return from_warp(WarpGPUWorkload(metadata=meta, spec=WarpGPUWorkloadSpec(modelName=model, gpuCount=gpus)))


def kgwe(spec):
    meta = {"name": "w", "namespace": "ns", "uid": UID, "generation": 1}
    kind = resources.GPU_WORKLOAD.type
    return from_kgwe(msgspec.convert({"metadata": meta, "spec": spec}, kind))


def with_template(spec, count=2, **more):
    return kgwe({"gpuRequirements": {"count": count}, "podTemplate": {"spec": spec}, **more})


def gpus_of(container):
    return container["resources"]["limits"][amounts.GPU]


class TestName:
    def test_is_the_same_each_time_and_carries_the_uid(self):
        assert jobs.job_name(warp()) == jobs.job_name(warp()) == "w-job-0f1e2d3c"

    @given(st.text(alphabet=string.ascii_lowercase + string.digits + "-.", min_size=1, max_size=253))
    def test_is_a_dns_label_that_leaves_room_for_pod_suffixes(self, name):
        made = jobs.job_name(warp(name.strip("-.") or "x"))
        assert len(made) <= 52
        assert set(made) <= set(string.ascii_lowercase + string.digits + "-")
        assert made[0].isalnum()
        assert made.endswith("-job-0f1e2d3c")


class TestLabels:
    @given(st.text(min_size=1, max_size=255))
    def test_any_model_name_becomes_a_legal_label_value(self, model):
        value = jobs.label_value(model)
        assert len(value) <= 63
        assert not value or (value[0].isalnum() and value[-1].isalnum())
        assert all(c in string.ascii_letters + string.digits + "-._" for c in value)

    def test_the_whole_model_name_is_kept_as_an_annotation_and_in_the_environment(self):
        model = "meta/llama 3: 70B " * 10
        template = jobs.pod_template(warp(model=model), IMAGE)
        assert template["metadata"]["annotations"][jobs.MODEL_ANNOTATION] == model
        env = {e["name"]: e["value"] for e in template["spec"]["containers"][0]["env"]}
        assert env == {"MODEL_NAME": model, "GPU_COUNT": "2"}


class TestTemplate:
    def test_without_a_template_the_default_image_runs(self):
        (container,) = jobs.pod_template(warp(), IMAGE)["spec"]["containers"]
        assert container["image"] == IMAGE
        assert gpus_of(container) == "2"

    def test_the_users_template_is_not_changed_in_place(self):
        workload = with_template({"containers": [{"name": "c", "image": "x"}]})
        before = copy.deepcopy(workload.template)
        jobs.build(workload, jobs.pod_template(workload, IMAGE), "n1")
        assert workload.template == before

    def test_the_first_container_gets_the_gpus(self):
        workload = with_template({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]})
        first, second = jobs.pod_template(workload, IMAGE)["spec"]["containers"]
        assert gpus_of(first) == "2"
        assert "resources" not in second

    def test_gpus_the_user_spread_over_containers_stay_where_they_are(self):
        limits = {"limits": {amounts.GPU: 1}}
        containers = [{"name": n, "image": "x", "resources": limits} for n in ("a", "b")]
        made = jobs.pod_template(with_template({"containers": containers}), IMAGE)["spec"]["containers"]
        assert [gpus_of(c) for c in made] == ["1", "1"]

    def test_other_requests_of_the_user_are_kept(self):
        wants = {"requests": {"cpu": 8, "memory": "64Gi"}}
        workload = with_template({"containers": [{"name": "c", "image": "x", "resources": wants}]})
        (container,) = jobs.pod_template(workload, IMAGE)["spec"]["containers"]
        assert container["resources"]["requests"] == {"cpu": "8", "memory": "64Gi", amounts.GPU: "2"}

    @pytest.mark.parametrize("field", ["nodeSelector", "tolerations", "initContainers", "overhead", "affinity"])
    def test_null_means_absent(self, field):
        container = {"name": "c", "image": "x", "resources": {"requests": None}, "env": None}
        template = {"metadata": None, "spec": {"containers": [container], field: None}}
        workload = kgwe({"gpuRequirements": {"count": 1}, "podTemplate": template})
        made = jobs.pod_template(workload, IMAGE)
        assert made["metadata"]["labels"][jobs.UID_LABEL] == UID
        assert jobs.ask(workload, made, frozenset()).count == 1

    def test_the_users_app_label_is_kept_and_ours_are_not_to_be_overwritten(self):
        meta = {"labels": {"app": "theirs", jobs.UID_LABEL: "forged"}}
        template = {"metadata": meta, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        made = jobs.pod_template(kgwe({"gpuRequirements": {"count": 1}, "podTemplate": template}), IMAGE)
        assert made["metadata"]["labels"]["app"] == "theirs"
        assert made["metadata"]["labels"][jobs.UID_LABEL] == UID


class TestAsk:
    def test_counts_what_all_pods_need_together(self):
        wants = {"requests": {"cpu": "500m", "memory": "1Gi"}}
        spec = {"containers": [{"name": "c", "image": "x", "resources": wants}]}
        workload = with_template(spec, count=4, gpusPerPod=2)
        asked = jobs.ask(workload, jobs.pod_template(workload, IMAGE), frozenset())
        assert asked.count == 4
        assert asked.amounts == {amounts.GPU: 4, "cpu": 1000, "memory": 2 * 2**30, "pods": 2}

    @pytest.mark.parametrize(
        "limits",
        [
            {amounts.GPU: 1},
            {amounts.GPU: 6},
            {"nvidia.com/mig-1g.10gb": 2},
            {amounts.GPU: 2, "nvidia.com/mig-1g.5gb": 1},
        ],
    )
    def test_a_template_that_contradicts_the_requirements_is_refused(self, limits):
        container = {"name": "c", "image": "x", "resources": {"limits": limits}}
        workload = with_template({"containers": [container]})
        with pytest.raises(errors.Permanent, match="make both agree"):
            jobs.ask(workload, jobs.pod_template(workload, IMAGE), frozenset())

    @pytest.mark.parametrize(
        "bad",
        [
            "x",
            {"nodeAffinity": 3},
            {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Near"}]}]
                    }
                }
            },
        ],
    )
    def test_affinity_that_makes_no_sense_is_refused(self, bad):
        workload = with_template({"containers": [{"name": "c", "image": "x"}], "affinity": bad})
        with pytest.raises(errors.Permanent):
            jobs.ask(workload, jobs.pod_template(workload, IMAGE), frozenset())


class TestPin:
    def pinned(self, affinity=None):
        spec = {"containers": [{"name": "c", "image": "x"}]}
        if affinity is not None:
            spec["affinity"] = affinity
        workload = with_template(spec)
        job = jobs.build(workload, jobs.pod_template(workload, IMAGE), "n1")
        made = job["spec"]["template"]["spec"]["affinity"]
        return made["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"], made

    here = {"key": "metadata.name", "operator": "In", "values": ["n1"]}

    def test_without_affinity_there_is_one_term(self):
        assert self.pinned()[0] == [{"matchFields": [self.here]}]

    def test_each_alternative_of_the_user_gets_the_node(self):
        terms: list[dict[str, Any]] = [
            {"matchExpressions": [{"key": "zone", "operator": "Exists"}]},
            {"matchFields": []},
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        made, affinity = self.pinned({"nodeAffinity": required, "podAntiAffinity": {"x": 1}})
        assert made == [{**terms[0], "matchFields": [self.here]}, {"matchFields": [self.here]}]
        assert affinity["podAntiAffinity"] == {"x": 1}

    @pytest.mark.parametrize("nothing", [None, {}, {"nodeAffinity": None}])
    def test_empty_affinity_is_no_affinity(self, nothing):
        assert self.pinned(nothing)[0] == [{"matchFields": [self.here]}]


class TestJob:
    def test_several_pods_are_indexed(self):
        workload = with_template({"containers": [{"name": "c", "image": "x"}]}, count=4, gpusPerPod=2)
        spec = jobs.build(workload, jobs.pod_template(workload, IMAGE), "n1")["spec"]
        assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")

    def test_evictions_do_not_fail_the_job_unless_the_pod_restarts_by_itself(self):
        never = with_template({"containers": [{"name": "c", "image": "x"}]})
        assert "podFailurePolicy" in jobs.build(never, jobs.pod_template(never, IMAGE), "n1")["spec"]
        restarts = with_template({"containers": [{"name": "c", "image": "x"}], "restartPolicy": "OnFailure"})
        assert "podFailurePolicy" not in jobs.build(restarts, jobs.pod_template(restarts, IMAGE), "n1")["spec"]

    def test_pods_that_restart_themselves_may(self):
        restarts = with_template({"containers": [{"name": "c", "image": "x"}], "restartPolicy": "OnFailure"})
        assert jobs.build(restarts, jobs.pod_template(restarts, IMAGE), "n1")["spec"]["backoffLimit"] == 6

    def test_remembers_node_and_generation(self):
        notes = jobs.build(warp(), jobs.pod_template(warp(), IMAGE), "n1")["metadata"]["annotations"]
        assert (notes[jobs.NODE_ANNOTATION], notes[jobs.GENERATION_ANNOTATION]) == ("n1", "4")


class TestHeld:
    def job(self, **spec):
        container = {"name": "c", "resources": {"requests": {amounts.GPU: "2"}}}
        body = {"metadata": {"name": "j"}, "spec": {"template": {"spec": {"containers": [container]}}, **spec}}
        return msgspec.convert(body, Job)

    def test_pods_that_are_done_hold_nothing(self):
        job = self.job(parallelism=4, completions=4)
        done = msgspec.structs.replace(job, status=JobStatus(succeeded=3))
        assert jobs.held_by(job)[amounts.GPU] == 8
        assert jobs.held_by(done)[amounts.GPU] == 2

    def test_a_suspended_job_holds_nothing(self):
        assert jobs.held_by(self.job(suspend=True)) == {}
