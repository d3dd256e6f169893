"""Short transactions on the catalog are tried again when others disturb them.

On a Galera cluster that is how two nodes are told apart: both go ahead, and the commit of the second fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps
from time import sleep
from typing import ParamSpec, TypeVar

from lapse.errors import Retryable

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.01

P = ParamSpec("P")
R = TypeVar("R")


def retried(action: Callable[P, R]) -> Callable[P, R]:
    """For what runs one whole transaction, or several of which each may be repeated."""

    @wraps(action)
    def again(*args: P.args, **kwargs: P.kwargs) -> R:
        for attempt in range(ATTEMPTS - 1):
            try:
                return action(*args, **kwargs)
            except Retryable:
                # At random, or those who met would meet again.
                sleep(random.uniform(0, FIRST_PAUSE_SECONDS * 2**attempt))
        return action(*args, **kwargs)

    return again
