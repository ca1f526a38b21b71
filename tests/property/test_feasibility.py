"""What is promised in one round can be done in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import objects

from kgwe.apps.optimizer.waste.feasibility import Feasibility
from kgwe.cluster import offline
from kgwe.forecast.waste.alternatives import Action, Alternative
from kgwe.kube.api import resources
from kgwe.model.units import amounts

A100 = "A100-SXM4-80GB"
ALTERNATIVES = (
    Alternative(Action.MIG_PROFILE, 1, A100, mig_profile="1g.10gb"),
    Alternative(Action.SHARE, 1, A100, shares=2),
    *(Alternative(Action.FEWER_GPUS, count, A100) for count in (1, 2, 3)),
)


def make_view(free: int, slices: int, shares: int, pods: list[int]) -> offline.View:
    """Each pod has a node of its own that it fills; the other nodes are empty."""
    view = offline.empty_view()
    offers = {
        "free": {amounts.GPU: str(free)},
        "cut": {amounts.GPU: "0", "nvidia.com/mig-1g.10gb": str(slices)},
        "shared": {amounts.GPU: "0", amounts.SHARED: str(2 * shares)},
        **{f"n{number}": {amounts.GPU: str(gpus)} for number, gpus in enumerate(pods)},
    }
    for name, offered in offers.items():
        labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.replicas": "2"}
        ready = [{"type": "Ready", "status": "True"}]
        body = {
            "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"pods": "110", "cpu": "64", **offered}, "conditions": ready},
        }
        view.state.on_node(objects.added(objects.make(resources.NODE.type, body)))
    for number, gpus in enumerate(pods):
        meta = {"name": f"p{number}", "namespace": "team", "uid": f"p{number}"}
        body = {"metadata": meta, "spec": objects.pod_spec(gpus, f"n{number}"), "status": {"phase": "Running"}}
        view.state.on_pod(objects.added(objects.make(resources.POD.type, body)))
    return view


@given(data=st.data(), free=st.integers(0, 3), slices=st.integers(0, 3), shares=st.integers(0, 2))
def test_promises_of_a_round_can_be_kept_in_any_order(data, free, slices, shares):
    pods = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    view = make_view(free, slices, shares, pods)
    room = Feasibility(view)
    for number, alternative in data.draw(
        st.lists(st.tuples(st.integers(0, len(pods) - 1), st.sampled_from(ALTERNATIVES)), max_size=12)
    ):
        room.check(f"p{number}", alternative)
    snapshot = view.fleet.snapshot
    for uid in data.draw(st.permutations(sorted(room.promised))):
        for grant in view.fleet.grants(uid):
            snapshot.release(grant)
        snapshot.commit(room.promised[uid])
