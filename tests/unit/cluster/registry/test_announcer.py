"""Subscriptions to changes of the cluster."""

from __future__ import annotations

import dataclasses
import inspect

from kgwe.cluster.registry.announcer import Announcer, ClusterListener


def test_every_subscriber_is_called_in_order_until_its_subscription_ends():
    announcer, heard = Announcer(), []
    first = announcer.subscribe(ClusterListener(health_changed=lambda node: heard.append(("first", node))))
    announcer.subscribe(ClusterListener(health_changed=lambda node: heard.append(("second", node))))
    announcer.health_changed("n1")
    assert heard == [("first", "n1"), ("second", "n1")]
    first()
    first()
    announcer.health_changed("n2")
    assert heard[2:] == [("second", "n2")]


def test_a_subscriber_may_leave_out_what_it_does_not_need():
    announcer = Announcer()
    announcer.subscribe(ClusterListener())
    announcer.capacity_freed()
    announcer.workload_removed("uid")


def test_there_is_one_announcement_for_each_thing_that_can_be_listened_to():
    methods = {name for name, _ in inspect.getmembers(Announcer, inspect.isfunction) if not name.startswith("_")}
    assert methods - {"subscribe"} == {each.name for each in dataclasses.fields(ClusterListener)}


def test_each_announcement_reaches_the_listener_of_its_name():
    for each in dataclasses.fields(ClusterListener):
        heard: list[tuple[object, ...]] = []
        announcer = Announcer()
        announcer.subscribe(ClusterListener(**{each.name: lambda *args, heard=heard: heard.append(args)}))
        count = len(inspect.signature(getattr(announcer, each.name)).parameters)
        getattr(announcer, each.name)(*range(count))
        assert heard == [tuple(range(count))]
