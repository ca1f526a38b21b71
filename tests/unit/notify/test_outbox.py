"""The queue of a channel: order, bounds and repetition, with time as an argument."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.notifications import notification

from kgwe.notify.outbox import Message, Outbox


def message(name: str) -> Message:
    return Message(notification(name), "")


def test_messages_are_taken_in_order_of_arrival():
    outbox = Outbox(10, 60)
    for name in "abc":
        outbox.put(message(name), 0)
    taken = [outbox.take(0) for _ in range(4)]
    assert [each.notification.subject.name for each in taken if each] == ["a", "b", "c"]
    assert taken[3] is None


def test_a_message_that_waits_for_its_next_attempt_blocks_no_other():
    outbox = Outbox(10, 60)
    first, second = message("a"), message("b")
    outbox.put(first, 0)
    outbox.put(second, 0)
    assert outbox.take(0) is first
    outbox.put_back(first, 10)
    assert outbox.take(1) is second
    assert outbox.take(9) is None
    assert outbox.next_due() == 10
    assert outbox.take(10) is first
    assert outbox.next_due() is None


def test_a_full_queue_drops_the_oldest_and_that_may_be_the_one_that_failed():
    outbox = Outbox(2, 60)
    first, second, third, fourth = (message(name) for name in "abcd")
    outbox.put(first, 0)
    outbox.put(second, 0)
    assert outbox.put(third, 0) is first
    assert outbox.take(0) is second
    outbox.put(fourth, 0)
    assert outbox.put_back(second, 5) is second
    assert len(outbox) == 2


def test_a_repetition_is_known_for_its_time():
    outbox = Outbox(2, 60)
    outbox.put(message("a"), 0)
    assert outbox.is_repeated(message("a"), 59)
    assert not outbox.is_repeated(message("a"), 60)
    assert not outbox.is_repeated(message("b"), 0)
    assert not outbox.is_repeated(Message(notification("a"), "other@example.com"), 0)
    outbox.forget(message("a"))
    assert not outbox.is_repeated(message("a"), 1)


@given(st.lists(st.sampled_from(["put", "take", "back"]), max_size=60), st.integers(1, 4))
def test_the_queue_never_exceeds_its_size_and_loses_nothing_silently(steps: list[str], size: int):
    outbox = Outbox(size, 0)
    given_in, given_out, dropped = 0, 0, 0
    for now, step in enumerate(steps):
        if step == "put":
            given_in += 1
            dropped += outbox.put(message(str(now)), now) is not None
        else:
            taken = outbox.take(now)
            if taken is not None and step == "back":
                dropped += outbox.put_back(taken, now + 2) is not None
            elif taken is not None:
                given_out += 1
        assert len(outbox) <= size
        assert given_in == given_out + dropped + len(outbox)
