"""What a plain pod asks for: shares of cards, and how large."""

from __future__ import annotations

import msgspec
import pytest

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.translate import podrequest
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, SpotPolicy


def pod(limits, **annotations):
    body = {
        "metadata": {"name": "p", "annotations": {f"kgwe.nvidia.io/{key}": text for key, text in annotations.items()}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    return msgspec.convert(body, resources.POD.type)


def shared(said="", count=1):
    return pod({amounts.SHARED: str(count)}, **({"gpu-share": said} if said else {}))


def gpus(made, **more):
    return podrequest.read_request(made, **more).request.gpus


def test_a_pod_says_how_large_a_share_it_means():
    assert gpus(shared("0.5")) == Gpus(milli=500)
    assert gpus(shared("0.33")) == Gpus(milli=333)
    assert gpus(shared("0.5"), pieces=4) == Gpus(milli=500), "what it says counts, whatever is usual"


def test_a_pod_that_does_not_say_means_what_nodes_offer():
    assert gpus(shared(), pieces=4) == Gpus(milli=250)
    with pytest.raises(errors.Permanent, match="which no node offers"):
        gpus(shared())


@pytest.mark.parametrize("said", ["half", "0.4", "1", "0", "-0.5", "nan", "inf", "1e999", "0.5x"])
def test_what_is_no_share_is_told_with_what_would_be(said):
    with pytest.raises(errors.Permanent, match=r"gpu-share: .* is not a share of one GPU, .* such as 0\.5"):
        gpus(shared(said))


def test_several_shares_are_refused():
    with pytest.raises(
        errors.Permanent, match=r"^Pod .+ requests 2 nvidia\.com/gpu\.shared\. Several shares .* Request 1\.$"
    ):
        gpus(shared("0.5", count=2))


def test_shares_and_whole_cards_do_not_mix():
    with pytest.raises(errors.Permanent, match="several kinds of GPU at once"):
        gpus(pod({amounts.SHARED: "1", amounts.GPU: "1"}))


def test_whether_it_asks_for_the_same_everywhere():
    assert podrequest.says_its_share(shared("0.5"))
    assert podrequest.says_its_share(pod({amounts.GPU: "1"}))
    assert not podrequest.says_its_share(shared())


def test_a_share_of_a_slice_is_nothing_that_is_placed_here():
    made = pod({"nvidia.com/mig-1g.10gb.shared": "1"})
    assert gpus(made) == Gpus()
    assert not podrequest.asks_for_gpus(podrequest.read_request(made).amounts)


def spot(**notes):
    made = pod({amounts.GPU: "1"})
    made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=notes))
    return podrequest.read_request(made).request.spot


class TestSpot:
    def test_a_pod_that_says_nothing_avoids_spot(self):
        assert spot() is SpotPolicy.AVOID

    @pytest.mark.parametrize("policy", SpotPolicy)
    def test_a_pod_says_its_policy(self, policy):
        assert spot(**{podrequest.SPOT_POLICY: policy.value, podrequest.SPOT_OK: "true"}) is policy

    @pytest.mark.parametrize(
        "notes",
        [
            {"gpu-autoscaler.io/spot-ok": "true"},
            {podrequest.PREEMPTIBLE: "true"},
            {podrequest.STRATEGY: "costOptimized"},
        ],
    )
    def test_spot_is_fine_for_pods_that_say_so_may_be_stopped_or_are_to_be_cheap(self, notes):
        assert spot(**notes) is SpotPolicy.ALLOW

    def test_a_pod_that_may_be_stopped_can_still_avoid_spot(self):
        assert spot(**{podrequest.SPOT_OK: "false", podrequest.PREEMPTIBLE: "true"}) is SpotPolicy.AVOID

    def test_a_policy_that_does_not_exist_is_told_with_those_that_do(self):
        with pytest.raises(errors.Permanent, match="'Never' is none of Avoid, Allow, Require"):
            spot(**{podrequest.SPOT_POLICY: "Never"})


def test_pods_of_one_template_share_one_request():
    """Annotations that are not read here, such as an index, make no difference."""
    one, other = pod({amounts.GPU: "2"}, index="1"), pod({amounts.GPU: "2"}, index="2")
    assert podrequest.read_request(one) is podrequest.read_request(other)
    assert podrequest.read_request(pod({amounts.GPU: "2"}, strategy="pack")) != podrequest.read_request(one)
