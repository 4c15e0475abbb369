"""Slots of hosts: failures cool down, orderly ends and new listings do not."""

from kfcore.launch.hosts import Host
from kfcore.launch.slots import SlotBook


def test_a_host_that_failed_is_used_again_after_its_time_only():
    book = SlotBook([Host("a", 1)], cooldown_s=10)
    slot = book.take(now=100)
    book.give_back(slot, failed=True, now=101)
    assert book.take(now=110.9) is None
    assert book.cooling_s("a", 110.9) > 0
    assert book.take(now=111) == ("a", 0)


def test_a_host_that_was_left_in_order_is_used_at_once():
    book = SlotBook([Host("a", 1)], cooldown_s=10)
    book.give_back(book.take(now=0), failed=False, now=1)
    assert book.take(now=1) == ("a", 0)


def test_a_host_taken_off_the_list_and_put_back_is_used_again():
    book = SlotBook([Host("a", 1), Host("b", 1)], cooldown_s=10)
    assert [book.take(now=0), book.take(now=0)] == [("a", 0), ("b", 0)]
    assert book.set_hosts([Host("a", 1)]) == ([], ["b"])
    book.give_back(("b", 0), failed=False, now=1)
    assert book.take(now=2) is None
    assert book.set_hosts([Host("a", 1), Host("b", 2)]) == (["b"], [])
    assert book.slots == 3
    assert [book.take(now=5), book.take(now=5)] == [("b", 0), ("b", 1)]
