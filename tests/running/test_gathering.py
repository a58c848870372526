"""Devices share the nodes of a map fairly: no child leaves with more while another device idles."""

import time
from pathlib import Path

import pytest

from artifacts.stage import Node, Stage
from running.launch import Order
from running.waiting import AT_ONCE, MOST_AT_ONCE, Waiting, at_once

STAGE = Stage("hidden_states", module="tasks.hidden_states", libraries=(), gathers=True)


def order(number: int) -> Order:
    return Order(Node(STAGE, str(number), {}, {}), f"key {number}", {}, Path(), -1)


def waiting_for(count: int) -> tuple[Waiting, list[Order]]:
    waiting, orders = Waiting(), [order(number) for number in range(count)]
    waiting.expect(one.key for one in orders)
    return waiting, orders


def take(waiting: Waiting, devices: int) -> list[Order]:
    with waiting.condition:
        return waiting.take(devices)


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 5, 16, 64])
def test_shares_differ_by_one_at_most(count: int, devices: int) -> None:
    waiting, orders = waiting_for(count)
    for one in orders:
        assert not waiting.complete(), "nobody takes a share while nodes are on their way"
        waiting.add(one)
    assert waiting.complete()
    shares = [take(waiting, devices) for _ in range(devices)]
    assert sum(shares, []) == orders
    taken = [len(share) for share in shares if share]
    assert max(taken) - min(taken) <= 1
    assert len(taken) == min(count, devices)
    assert max(taken) == -(-count // devices)


def test_what_a_run_has_in_hand_is_shared_not_what_came_first() -> None:
    waiting, orders = waiting_for(1000)
    for one in orders[:AT_ONCE]:
        waiting.add(one)
    assert waiting.complete(), "no more than this are in hand at a time"
    first, second = take(waiting, 2), take(waiting, 2)
    assert len(first) == len(second) == AT_ONCE // 2
    for done, new in zip(first, orders[AT_ONCE:], strict=False):
        waiting.end(done, None)
        waiting.add(new)
    waiting.leave()
    assert len(take(waiting, 2)) == AT_ONCE // 2, "half of all, although the other child has not ended"


@pytest.mark.parametrize(("devices", "size", "expected"), [(2, 1, AT_ONCE), (8, 26, 416), (16, 26, MOST_AT_ONCE)])
def test_every_device_has_its_next_pass_in_hand(devices: int, size: int, expected: int) -> None:
    assert at_once(devices, size) == expected


def test_nodes_that_another_run_does_hold_nobody_up() -> None:
    waiting, orders = waiting_for(3)
    waiting.add(orders[0])
    waiting.forget(orders[1].key)
    assert not waiting.complete()
    time.sleep(0.6)
    assert waiting.complete(), "one is not coming: another run holds its lock"


def test_an_order_ends_once() -> None:
    waiting, (one,) = waiting_for(1)
    waiting.add(one)
    take(waiting, 1)
    waiting.end(one, None)
    assert waiting.ended.pop(id(one)) is None
    waiting.end(one, RuntimeError("the child died later"))
    assert not waiting.ended and not waiting.taken
