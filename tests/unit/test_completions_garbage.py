"""The garbage collector's settings while answers come in."""

from __future__ import annotations

import gc
import weakref

from tasks.completions.garbage import collect_rarely


class Node:
    def __init__(self) -> None:
        self.itself = self


def test_collections_are_rare_inside_and_as_before_afterwards() -> None:
    whoever = gc.get_threshold()
    before = (700, 10, 10)
    gc.set_threshold(*before)
    try:
        with collect_rarely():
            assert gc.get_threshold()[0] > 10 * before[0]
            assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*whoever)
    assert gc.get_freeze_count() == 0


def test_the_last_user_puts_the_settings_back_whatever_the_order() -> None:
    before = gc.get_threshold()
    first, second = collect_rarely(), collect_rarely()
    with first:
        second.__enter__()
    assert gc.get_threshold() != before
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_cycles_made_inside_are_still_found() -> None:
    with collect_rarely():
        node = Node()
        gone = weakref.ref(node)
        del node
        # Enough for the collector to wake by itself; those taken from free lists do not count.
        kept: list[list[int]] = [[] for _ in range(2 * gc.get_threshold()[0])]
        assert gone() is None
        assert kept
