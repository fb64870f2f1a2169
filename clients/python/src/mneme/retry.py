"""When a failed call is made again.

A token that was fed to a session cannot be taken back, so a repeated request must never feed its
prompt twice. That is why requests to named sessions carry an idempotency key: the server knows a
repetition by it, and answers with the result of the first try or refuses.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Optional

from mneme.errors import (
    DeadlineExceeded,
    MnemeError,
    Overloaded,
    RequestInProgress,
    Unavailable,
)

__all__ = ["RetryPolicy"]


@dataclass(frozen=True)
class RetryPolicy:
    """How often and when to try again after `Unavailable` and `Overloaded`.

    The wait doubles from try to try, is never less than what the server asks for, and is longer by
    up to `jitter` (a fraction) so that many clients do not come back at once. If the server asks
    for more than `max_backoff`, its error is raised at once, with `retry_after` set.

    So a call spends at most (max_attempts - 1) * max_backoff * (1 + jitter) seconds on waiting: 36
    unless told otherwise.
    """

    max_attempts: int = 4
    initial_backoff: float = 0.2
    """Seconds before the second try."""
    max_backoff: float = 10.0
    """Seconds of the longest wait, less its jitter, whoever asks for it."""
    multiplier: float = 2.0
    jitter: float = 0.2


class Attempts:
    """The tries of one call: how much time is left, and whether to go on after an error."""

    def __init__(
        self, policy: Optional[RetryPolicy], timeout: Optional[float], *, repeatable: bool
    ) -> None:
        """`repeatable`: doing the work twice is the same as doing it once."""
        self._policy = policy
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._repeatable = repeatable
        self._made = 0

    def begin(self) -> Optional[float]:
        """Starts a try; returns its timeout."""
        self._made += 1
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - time.monotonic())

    def delay_after(self, error: MnemeError) -> Optional[float]:
        """Seconds to wait before the next try; None: give up and raise `error`."""
        policy = self._policy
        if policy is None or self._made >= policy.max_attempts or not self._may_repeat(error):
            return None
        backoff = min(
            policy.initial_backoff * policy.multiplier ** (self._made - 1), policy.max_backoff
        )
        hint = error.retry_after or 0.0
        if hint > policy.max_backoff:
            return None
        delay = max(backoff, hint)
        delay *= 1.0 + policy.jitter * random.random()
        if self._deadline is not None and time.monotonic() + delay >= self._deadline:
            return None
        return delay

    def _may_repeat(self, error: MnemeError) -> bool:
        if isinstance(error, DeadlineExceeded):
            return False
        if isinstance(error, Overloaded):
            return True
        if isinstance(error, Unavailable):
            # Without an answer from the server nobody knows whether the work was done.
            return self._repeatable or error.refused_by_server
        # The first try of this very call has not ended yet on the server.
        return isinstance(error, RequestInProgress) and self._made > 1
