"""Waiting for what a server does in its own time."""

import asyncio
import time

TIMEOUT_S = 120.0
PAUSE_S = 0.01


def wait_for(condition, what):
    """Until `condition()` is true; fails the test after a while."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(PAUSE_S)


def wait_for_value(read, expected):
    """Until `read()` gives `expected`; fails the test after a while with what it gives instead."""
    deadline = time.monotonic() + TIMEOUT_S
    while (value := read()) != expected and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    assert value == expected, f"waited in vain for {expected!r}; it is {value!r}"


async def wait_until(condition, what):
    """As wait_for, with a `condition` that is awaited."""
    deadline = time.monotonic() + TIMEOUT_S
    while not await condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        await asyncio.sleep(PAUSE_S)
