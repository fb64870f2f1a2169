import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import mneme

from fake_server import FakeServer

FAST = mneme.RetryPolicy(initial_backoff=0.01, max_backoff=1.0)


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture
def client(server):
    with mneme.Client(server.target, retry=FAST) as c:
        yield c
