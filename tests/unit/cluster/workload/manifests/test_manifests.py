"""What runs a workload: names, labels, GPUs, pins and gates, and how ranks find each other."""

import copy
import json
import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe import errors
from kgwe.cluster.workload import metadata_keys, placement_annotations, plan_details
from kgwe.cluster.workload.manifests import pod_template, rendezvous, run_manifest, run_metadata, workload_ask
from kgwe.cluster.workload.workload import Details, from_kgwe, from_warp
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.warp import WarpGPUWorkload, WarpGPUWorkloadSpec
from kgwe.kube.api.meta import ObjectMeta
from kgwe.model.devices import assignment
from kgwe.model.devices.assignment import DeviceSet
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, SpotPolicy
from kgwe.placement.gang.request import Hardware
from kgwe.placement.planning.plan import Plan, Seat

UID = "0f1e2d3c-aaaa-bbbb-cccc-0123456789ab"
IMAGE = "example.com/default:1"


def warp(name="w", model="llama2", gpus=2):
    meta = ObjectMeta(name=name, namespace="ns", uid=UID, generation=4)
    return from_warp(WarpGPUWorkload(metadata=meta, spec=WarpGPUWorkloadSpec(modelName=model, gpuCount=gpus)))


def kgwe(spec, annotations=None):
    meta = {"name": "w", "namespace": "ns", "uid": UID, "generation": 1, "annotations": annotations or {}}
    kind = resources.GPU_WORKLOAD.type
    return from_kgwe(msgspec.convert({"metadata": meta, "spec": spec}, kind))


def with_template(spec, count=2, **more):
    return kgwe({"gpuRequirements": {"count": count}, "podTemplate": {"spec": spec}, **more})


def gpus_of(container):
    return container["resources"]["limits"][amounts.GPU]


CONTAINER = {"name": "c", "image": "x"}
DEEP = '{"other": ' + "[" * 5000 + "]" * 5000 + "}"


def ask(workload):
    return workload_ask.build_ask(workload, pod_template.build_pod_template(workload, IMAGE), frozenset())


def planned(workload, *nodes, per_pod=2, **more):
    """The workload's Job or Deployment, a pod for each node."""
    seats = tuple(Seat(node, 0b11) for node in nodes)
    plan = Plan(
        ask=ask(workload), seats=seats, grants=(), amounts={amounts.GPU: per_pod}, score=71.6,
        parts={"topology": 50.04}, gb_per_s=450.0, level="leaf", domain="a", message="why", **more,
    )  # fmt: skip
    return run_manifest.build_run(workload, pod_template.build_pod_template(workload, IMAGE), plan, "run1")


class TestName:
    def test_is_the_same_each_time_and_carries_the_uid(self):
        assert run_metadata.job_name(warp()) == run_metadata.job_name(warp()) == "w-job-0f1e2d3c"

    @given(st.text(alphabet=string.ascii_lowercase + string.digits + "-.", min_size=1, max_size=253))
    def test_is_a_dns_label_that_leaves_room_for_pod_suffixes(self, name):
        made = run_metadata.job_name(warp(name.strip("-.") or "x"))
        assert len(made) <= 52
        assert set(made) <= set(string.ascii_lowercase + string.digits + "-")
        assert made[0].isalnum()
        assert made.endswith("-job-0f1e2d3c")


class TestLabels:
    @given(st.text(min_size=1, max_size=255))
    def test_any_model_name_becomes_a_legal_label_value(self, model):
        value = run_metadata.label_value(model)
        assert len(value) <= 63
        assert not value or (value[0].isalnum() and value[-1].isalnum())
        assert all(c in string.ascii_letters + string.digits + "-._" for c in value)

    def test_the_whole_model_name_is_kept_as_an_annotation_and_in_the_environment(self):
        model = "meta/llama 3: 70B " * 10
        template = pod_template.build_pod_template(warp(model=model), IMAGE)
        assert template["metadata"]["annotations"][metadata_keys.MODEL_ANNOTATION] == model
        env = {e["name"]: e["value"] for e in template["spec"]["containers"][0]["env"]}
        assert env == {"MODEL_NAME": model, "GPU_COUNT": "2"}


class TestTemplate:
    def test_without_a_template_the_default_image_runs(self):
        (container,) = pod_template.build_pod_template(warp(), IMAGE)["spec"]["containers"]
        assert container["image"] == IMAGE
        assert gpus_of(container) == "2"

    def test_the_users_template_is_not_changed_in_place(self):
        workload = with_template({"containers": [{"name": "c", "image": "x"}]})
        before = copy.deepcopy(workload.template)
        planned(workload, "n1", "n2", per_pod=1)
        assert workload.template == before

    def test_the_first_container_gets_the_gpus(self):
        workload = with_template({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]})
        first, second = pod_template.build_pod_template(workload, IMAGE)["spec"]["containers"]
        assert gpus_of(first) == "2"
        assert "resources" not in second

    def test_gpus_the_user_spread_over_containers_stay_where_they_are(self):
        limits = {"limits": {amounts.GPU: 1}}
        containers = [{"name": n, "image": "x", "resources": limits} for n in ("a", "b")]
        made = pod_template.build_pod_template(with_template({"containers": containers}), IMAGE)["spec"]["containers"]
        assert [gpus_of(c) for c in made] == ["1", "1"]

    def test_other_requests_of_the_user_are_kept(self):
        wants = {"requests": {"cpu": 8, "memory": "64Gi"}}
        workload = with_template({"containers": [{"name": "c", "image": "x", "resources": wants}]})
        (container,) = pod_template.build_pod_template(workload, IMAGE)["spec"]["containers"]
        assert container["resources"]["requests"] == {"cpu": "8", "memory": "64Gi", amounts.GPU: "2"}

    @pytest.mark.parametrize("field", ["nodeSelector", "tolerations", "initContainers", "overhead", "affinity"])
    def test_null_means_absent(self, field):
        container = {"name": "c", "image": "x", "resources": {"requests": None}, "env": None}
        template = {"metadata": None, "spec": {"containers": [container], field: None}}
        workload = kgwe({"gpuRequirements": {"count": 1}, "podTemplate": template})
        made = pod_template.build_pod_template(workload, IMAGE)
        assert made["metadata"]["labels"][metadata_keys.UID_LABEL] == UID
        assert workload_ask.build_ask(workload, made, frozenset()).request.gpus.count == 1

    @pytest.mark.parametrize("levels", [100, 450, 900, 5000])
    @pytest.mark.parametrize("wrap", [lambda inner: {"a": inner}, lambda inner: [inner]])
    def test_a_template_that_is_nested_too_deep_is_refused(self, levels, wrap):
        inner: Any = 1
        for _ in range(levels):
            inner = wrap(inner)
        with pytest.raises(errors.Permanent, match="nested deeper than 100 levels"):
            pod_template.build_pod_template(with_template({"containers": [CONTAINER], "zz": inner}), IMAGE)

    def test_the_users_app_label_is_kept_and_ours_are_not_to_be_overwritten(self):
        meta = {"labels": {"app": "theirs", metadata_keys.UID_LABEL: "forged"}}
        template = {"metadata": meta, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        made = pod_template.build_pod_template(kgwe({"gpuRequirements": {"count": 1}, "podTemplate": template}), IMAGE)
        assert made["metadata"]["labels"]["app"] == "theirs"
        assert made["metadata"]["labels"][metadata_keys.UID_LABEL] == UID

    def test_what_we_write_on_pods_ourselves_cannot_come_from_a_template(self):
        meta = {
            "annotations": {
                placement_annotations.SEAT_ANNOTATION: "forged/0",
                placement_annotations.CARDS_ANNOTATION: "ff",
                "mine": "1",
            },
            "labels": {metadata_keys.RUN_LABEL: "forged"},
        }
        template = {"metadata": meta, "spec": {"containers": [CONTAINER]}}
        made = pod_template.build_pod_template(kgwe({"gpuRequirements": {"count": 1}, "podTemplate": template}), IMAGE)
        assert made["metadata"]["annotations"] == {"mine": "1"}
        assert metadata_keys.RUN_LABEL not in made["metadata"]["labels"]


class TestAsk:
    def test_counts_what_one_pod_takes(self):
        wants = {"requests": {"cpu": "500m", "memory": "1Gi"}}
        spec = {"containers": [{**CONTAINER, "resources": wants}]}
        asked = ask(with_template(spec, count=4, gpusPerPod=2))
        assert (asked.pods, asked.request.gpus.count, asked.divisible) == (2, 2, False)
        assert asked.amounts == {amounts.GPU: 2, "cpu": 500, "memory": 2**30, "pods": 1}
        assert (asked.request.cpu_milli, asked.request.memory_bytes) == (500, 2**30)

    @pytest.mark.parametrize(
        ("spec", "notes", "policy"),
        [
            ({}, {}, SpotPolicy.AVOID),
            ({"preemptible": True}, {}, SpotPolicy.ALLOW),
            ({"schedulingStrategy": "costOptimized"}, {}, SpotPolicy.ALLOW),
            ({}, {"gpu-autoscaler.io/spot-ok": "true"}, SpotPolicy.ALLOW),
            ({"spotPolicy": "Require"}, {"gpu-autoscaler.io/spot-ok": "true"}, SpotPolicy.REQUIRE),
            ({"spotPolicy": "Avoid", "preemptible": True}, {}, SpotPolicy.AVOID),
        ],
    )
    def test_work_that_may_not_be_stopped_avoids_spot_unless_it_says_otherwise(self, spec, notes, policy):
        template = {"metadata": {"annotations": notes}, "spec": {"containers": [CONTAINER]}}
        made = kgwe({"gpuRequirements": {"count": 2}, "podTemplate": template, **spec})
        assert ask(made).request.spot is policy

    def test_pods_of_one_workload_are_on_one_kind_of_node_unless_it_says_otherwise(self):
        assert ask(with_template({"containers": [CONTAINER]})).nearness.hardware is Hardware.SAME
        mixed = kgwe({"gpuRequirements": {"count": 2, "hardware": "Any"}})
        assert ask(mixed).nearness.hardware is Hardware.ANY

    def test_a_count_alone_may_be_divided_among_pods(self):
        assert ask(with_template({"containers": [CONTAINER]}, count=16)).divisible

    def test_a_template_that_names_its_gpus_says_how_many_pods_there_are(self):
        asking = {**CONTAINER, "resources": {"limits": {amounts.GPU: 8}}}
        whole = ask(with_template({"containers": [asking]}, count=8))
        assert (whole.pods, whole.divisible) == (1, False)
        parts = ask(with_template({"containers": [asking]}, count=32))
        assert (parts.pods, parts.request.gpus.count, parts.divisible) == (4, 8, False)

    def test_ranks_that_cannot_be_shared_out_over_the_templates_pods_are_refused(self):
        asking = {**CONTAINER, "resources": {"limits": {amounts.GPU: 4}}}
        with pytest.raises(errors.Permanent, match="worldSize 8 cannot be shared out"):
            ask(with_template({"containers": [asking]}, count=12, distributedConfig={"worldSize": 8}))

    def test_needs_and_nearness_come_from_the_spec(self):
        requirements = {
            "count": 16,
            "minMemoryGB": 40,
            "gpuModel": "H100",
            "architecture": "Hopper",
            "topology": {
                "preference": "SameNUMA",
                "minBandwidthGBps": 600,
                "requiredLevel": "leaf",
                "preferredLevel": "nvlink",
                "segmentSize": 2,
            },
        }
        asked = ask(kgwe({"gpuRequirements": requirements, "gpusPerPod": 4, "priority": 7, "preemptible": True}))
        wants = asked.request
        assert (wants.preference, wants.min_bandwidth_gbps, wants.min_memory_gb) == ("SameNUMA", 600, 40)
        assert (wants.model, wants.architecture) == ("H100", "Hopper")
        near = asked.nearness
        assert (near.required, near.preferred) == ("leaf", "nvlink")
        assert [(each.size, each.level) for each in near.segments] == [(2, "nvlink")]
        assert (asked.priority, asked.preemptible) == (7, True)

    @pytest.mark.parametrize(
        ("strategy", "preference"),
        [("FSDP", "NVLinkOptimal"), ("ModelParallel", "NVLinkOptimal"), ("DataParallel", "None"), ("", "None")],
    )
    def test_ranks_that_talk_all_the_time_go_where_wiring_is_best(self, strategy, preference):
        spec = {"gpuRequirements": {"count": 8}, "distributedConfig": {"strategy": strategy}}
        assert ask(kgwe(spec)).request.preference == preference
        spec["gpuRequirements"]["topology"] = {"preference": "NVLinkRequired"}
        assert ask(kgwe(spec)).request.preference == "NVLinkRequired"

    def test_slices_are_asked_for_by_profile(self):
        asked = ask(kgwe({"gpuRequirements": {"mig": {"profile": "1g.10gb", "count": 3}}}))
        assert (asked.request.gpus.profile, asked.request.gpus.slices) == ("1g.10gb", 3)
        assert asked.amounts["nvidia.com/mig-1g.10gb"] == 3

    @pytest.mark.parametrize(
        "limits",
        [
            {amounts.GPU: 3},
            {amounts.GPU: 6},
            {"nvidia.com/mig-1g.10gb": 2},
            {amounts.GPU: 2, "nvidia.com/mig-1g.5gb": 1},
        ],
    )
    def test_a_template_that_contradicts_the_requirements_is_refused(self, limits):
        container = {"name": "c", "image": "x", "resources": {"limits": limits}}
        workload = with_template({"containers": [container]})
        with pytest.raises(errors.Permanent, match="make both agree"):
            workload_ask.build_ask(workload, pod_template.build_pod_template(workload, IMAGE), frozenset())

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
            workload_ask.build_ask(workload, pod_template.build_pod_template(workload, IMAGE), frozenset())


class TestPin:
    def pinned(self, affinity=None):
        spec = {"containers": [CONTAINER]}
        if affinity is not None:
            spec["affinity"] = affinity
        made = planned(with_template(spec), "n1")["spec"]["template"]["spec"]["affinity"]
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
    def test_pods_of_a_gang_are_indexed_and_wait_for_their_seats(self):
        workload = with_template({"containers": [CONTAINER]}, count=4, gpusPerPod=2)
        spec = planned(workload, "n1", "n2")["spec"]
        assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
        assert spec["template"]["spec"]["schedulingGates"] == [{"name": placement_annotations.GATE}]
        assert "affinity" not in spec["template"]["spec"]

    def test_gpus_that_the_plan_divided_are_divided_in_the_template(self):
        workload = with_template({"containers": [CONTAINER]}, count=16)
        (container,) = planned(workload, "n1", "n2", per_pod=8)["spec"]["template"]["spec"]["containers"]
        assert gpus_of(container) == container["resources"]["requests"][amounts.GPU] == "8"

    def test_evictions_do_not_fail_the_job_unless_the_pod_restarts_by_itself(self):
        spec = planned(with_template({"containers": [CONTAINER]}), "n1")["spec"]
        evicted, failed = spec["podFailurePolicy"]["rules"]
        assert evicted["action"] == "Ignore"
        assert failed == {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0, 143]}}
        assert spec["backoffLimit"] == 6, "only pods that never started, or were deleted, count"
        restarts = with_template({"containers": [CONTAINER], "restartPolicy": "OnFailure"})
        assert "podFailurePolicy" not in planned(restarts, "n1")["spec"]

    def test_pods_that_restart_themselves_may(self):
        restarts = with_template({"containers": [CONTAINER], "restartPolicy": "OnFailure"})
        assert planned(restarts, "n1")["spec"]["backoffLimit"] == 6

    def test_remembers_the_plan_its_reasons_and_the_generation(self):
        notes = planned(warp(), "n1")["metadata"]["annotations"]
        assert (notes[placement_annotations.PLAN_ANNOTATION], notes[metadata_keys.GENERATION_ANNOTATION]) == (
            "n1=3",
            "4",
        )
        assert plan_details.decode_details(notes) == Details(72, (("topology", 50.0),), 450.0, "leaf/a", "why")

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"score": 101}', '{"parts": [["a", -1]]}', '{"domain": 3}', DEEP])
    def test_reasons_that_nobody_could_have_written_are_not_told(self, text):
        assert plan_details.decode_details({metadata_keys.DETAILS_ANNOTATION: text}) is None
        assert plan_details.decode_details({}) is None


class TestWhatAPodIsTold:
    def test_a_single_pod_is_told_its_cards_and_slices(self):
        made = planned(kgwe(TestInference.spec), "n1")
        annotations = made["spec"]["template"]["metadata"]["annotations"]
        seat = placement_annotations.decode(made["metadata"]["annotations"][placement_annotations.PLAN_ANNOTATION])[0]
        assert assignment.parse_planned(annotations) == DeviceSet(seat.gpus, seat.slices)
        assert seat.gpus

    def test_members_of_a_gang_are_told_when_they_are_seated(self):
        made = planned(kgwe(TestInference.spec | {"gpusPerPod": 1}), "n1", "n2", per_pod=1)
        annotations = made["spec"]["template"]["metadata"].get("annotations", {})
        assert assignment.CARDS_ANNOTATION not in annotations


class TestInference:
    spec = {"workloadType": "Inference", "gpuRequirements": {"count": 2}}

    def test_is_a_deployment_that_never_runs_two_pods_for_one(self):
        workload = kgwe(self.spec)
        made = planned(workload, "n1")
        assert run_metadata.resource_of(workload) is resources.DEPLOYMENT
        assert made["spec"]["replicas"] == 1
        assert made["spec"]["strategy"] == {"type": "Recreate"}
        assert made["spec"]["template"]["spec"]["restartPolicy"] == "Always"

    def test_its_pods_are_told_from_those_of_an_earlier_deployment_of_the_same_name(self):
        made = planned(kgwe(self.spec), "n1")
        wanted = {metadata_keys.UID_LABEL: UID, metadata_keys.RUN_LABEL: "run1"}
        assert made["spec"]["selector"]["matchLabels"] == wanted
        assert wanted.items() <= made["spec"]["template"]["metadata"]["labels"].items()
        assert made["metadata"]["labels"][metadata_keys.RUN_LABEL] == "run1"

    def test_replicas_do_not_look_for_each_other(self):
        made = planned(kgwe(self.spec | {"gpusPerPod": 1}), "n1", "n2", per_pod=1)
        spec = made["spec"]["template"]["spec"]
        assert "subdomain" not in spec
        assert "env" not in spec["containers"][0]


class TestRendezvous:
    def env(self, workload, pods=2, per_pod=8):
        spec = planned(workload, *(f"n{i}" for i in range(pods)), per_pod=per_pod)["spec"]["template"]["spec"]
        index = {"fieldRef": {"fieldPath": f"metadata.annotations['{placement_annotations.INDEX_ANNOTATION}']"}}
        entries = spec["containers"][0]["env"]
        return spec, {e["name"]: "<index>" if e.get("valueFrom") == index else e["value"] for e in entries}

    def test_torchrun_finds_everything_in_the_environment(self):
        spec, env = self.env(with_template({"containers": [CONTAINER]}, count=16))
        job = run_metadata.job_name(with_template({"containers": [CONTAINER]}))
        assert spec["subdomain"] == job
        assert env == {
            "MASTER_ADDR": f"{job}-0.{job}",
            "MASTER_PORT": "29500",
            "WORLD_SIZE": "16",
            "RANK": "<index>",
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "8",
            "PET_NODE_RANK": "<index>",
            "PET_MASTER_ADDR": f"{job}-0.{job}",
            "PET_MASTER_PORT": "29500",
        }

    def test_a_world_size_is_shared_out_over_the_pods(self):
        _, env = self.env(with_template({"containers": [CONTAINER]}, count=16, distributedConfig={"worldSize": 4}))
        assert (env["WORLD_SIZE"], env["PET_NPROC_PER_NODE"]) == ("4", "2")

    def test_tensorflow_gets_its_cluster(self):
        _, env = self.env(with_template({"containers": [CONTAINER]}, count=16, framework="TensorFlow"))
        config = json.loads(env["TF_CONFIG"].replace("$(KGWE_RANK)", "1"))
        assert len(config["cluster"]["worker"]) == 2
        assert config["cluster"]["worker"][0] == f"{env['MASTER_ADDR']}:29500"
        assert config["task"] == {"type": "worker", "index": 1}
        assert list(env).index("KGWE_RANK") < list(env).index("TF_CONFIG"), "only what is defined before is filled in"

    def test_more_workers_than_a_variable_can_name_are_refused(self):
        spec = {"containers": [{**CONTAINER}]}
        with pytest.raises(errors.Permanent, match=r"TF_CONFIG names every worker, which takes .* for 16384 pods"):
            rendezvous.add_environment(spec, "train-job-12345678", pods=16_384, gpus=1, ranks=0, framework="TensorFlow")

    def test_jax_gets_a_process_per_pod(self):
        _, env = self.env(with_template({"containers": [CONTAINER]}, count=16, framework="JAX"))
        assert (env["JAX_NUM_PROCESSES"], env["JAX_PROCESS_ID"]) == ("2", "<index>")
        assert env["JAX_COORDINATOR_ADDRESS"] == f"{env['MASTER_ADDR']}:29500"

    def test_what_the_user_set_stays_and_may_refer_to_ours(self):
        mine = [{"name": "MASTER_PORT", "value": "1234"}, {"name": "URL", "value": "tcp://$(MASTER_ADDR):1"}]
        spec, env = self.env(with_template({"containers": [{**CONTAINER, "env": mine}], "subdomain": "own"}, count=16))
        assert env["MASTER_PORT"] == "1234"
        assert env["MASTER_ADDR"].endswith("-0.own")
        names = [entry["name"] for entry in spec["containers"][0]["env"]]
        assert names.index("MASTER_ADDR") < names.index("URL")
        assert len(names) == len(set(names))

    def test_the_services_name_begins_with_a_letter(self):
        made = run_manifest.build_service(warp("7b-train"))
        assert made["metadata"]["name"] == "w7b-train-job-0f1e2d3c"
        assert made["spec"]["clusterIP"] == "None"
        assert made["spec"]["publishNotReadyAddresses"]

    @pytest.mark.parametrize(
        ("spec", "annotations", "is_named"),
        [
            ({"framework": "PyTorch"}, {}, False),
            ({"framework": "TensorFlow"}, {}, True),
            ({"distributedConfig": {"backend": "MPI"}}, {}, True),
            ({}, {"kgwe.nvidia.io/rendezvous": "all"}, True),
        ],
    )
    def test_the_service_names_rank_0_and_the_others_where_they_are_called_by_name(self, spec, annotations, is_named):
        workload = kgwe({"gpuRequirements": {"count": 16}, "gpusPerPod": 8, **spec}, annotations=annotations)
        rank_0 = {} if is_named else {"batch.kubernetes.io/job-completion-index": "0"}
        made = run_manifest.build_service(workload)
        assert made["spec"]["selector"] == {metadata_keys.UID_LABEL: UID, **rank_0}


# --- a share of a card -----------------------------------------------------------------------------------


def test_a_share_is_asked_for_as_one_piece_and_said_on_the_pod():
    workload = kgwe({"gpuRequirements": {"share": 0.5}})
    asked = ask(workload)
    assert asked.request.gpus == Gpus(milli=500)
    assert (asked.amounts[amounts.SHARED], asked.pods, asked.divisible) == (1, 1, False)
    template = pod_template.build_pod_template(workload, IMAGE)
    assert template["spec"]["containers"][0]["resources"]["limits"] == {amounts.SHARED: "1"}
    assert template["metadata"]["annotations"]["kgwe.nvidia.io/gpu-share"] == "0.5"


def test_a_template_may_ask_for_the_piece_itself_and_for_nothing_else():
    def workload(limits):
        container = CONTAINER | {"resources": {"limits": limits}}
        return kgwe({"gpuRequirements": {"share": 0.25}, "podTemplate": {"spec": {"containers": [container]}}})

    assert ask(workload({amounts.SHARED: 1})).request.gpus == Gpus(milli=250)
    with pytest.raises(errors.Permanent, match="make both agree"):
        ask(workload({amounts.GPU: 1}))


def test_a_share_that_no_card_is_divided_into_is_told():
    with pytest.raises(errors.Permanent, match=r"gpuRequirements\.share: 0\.4 is not"):
        ask(kgwe({"gpuRequirements": {"share": 0.4}}))


def test_the_deadline_of_a_workload_is_the_deadline_of_its_job():
    assert (
        planned(with_template({"containers": [CONTAINER]}, activeDeadlineSeconds=60), "n1")["spec"][
            "activeDeadlineSeconds"
        ]
        == 60
    )
    assert "activeDeadlineSeconds" not in planned(with_template({"containers": [CONTAINER]}), "n1")["spec"]


def test_a_later_deletion_is_no_other_spec_and_a_deadline_is():
    plain = with_template({"containers": [CONTAINER]})
    assert with_template({"containers": [CONTAINER]}, ttlSecondsAfterFinished=1).hash_spec() == plain.hash_spec()
    assert with_template({"containers": [CONTAINER]}, activeDeadlineSeconds=1).hash_spec() != plain.hash_spec()


def in_queue(count, **more):
    meta = {"name": "w", "namespace": "ns", "uid": UID, "labels": {metadata_keys.QUEUE_LABEL: "q"}}
    spec = {"gpuRequirements": {"count": count}, "podTemplate": {"spec": {"containers": [CONTAINER]}}, **more}
    return from_kgwe(msgspec.convert({"metadata": meta, "spec": spec}, resources.GPU_WORKLOAD.type))


@pytest.mark.parametrize(("count", "pods"), [(4, 1), (16, 2)])
def test_the_job_of_a_queued_workload_is_suspended_and_its_pods_are_gated(count, pods):
    workload = in_queue(count, gpusPerPod=count // pods)
    template = pod_template.build_pod_template(workload, IMAGE)
    made = run_manifest.build_queued_run(workload, template, pods)
    assert made["spec"]["suspend"] is True
    assert made["metadata"]["labels"][metadata_keys.QUEUE_LABEL] == "q"
    assert placement_annotations.PLAN_ANNOTATION not in made["metadata"]["annotations"]
    assert (made["spec"]["completions"], made["spec"].get("completionMode")) == (pods, "Indexed" if pods > 1 else None)
    spec = made["spec"]["template"]["spec"]
    assert spec["schedulingGates"] == [{"name": placement_annotations.GATE}]
    assert "affinity" not in spec
    assert gpus_of(spec["containers"][0]) == str(count // pods)


def test_inference_is_in_no_queue():
    assert in_queue(1).queue == "q"
    assert in_queue(1, workloadType="Inference").queue == ""
