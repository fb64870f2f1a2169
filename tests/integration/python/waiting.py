"""Waiting for what a server does in its own time."""

import time

TIMEOUT_S = 20.0


def wait_for(condition, what):
    """Until `condition()` is true; fails the test after a while."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.05)
