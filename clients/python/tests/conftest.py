import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_server import FakeServer


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.stop()
