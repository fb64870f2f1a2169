"""The examples of clients/python/README.md do, with the demo model, what is printed there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[3] / "clients" / "python" / "README.md"
# An example, and what it prints, if that is always the same.
EXAMPLES = re.findall(
    r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README.read_text(), re.DOTALL
)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(demo_server, number):
    source, output = EXAMPLES[number]
    source = source.replace("127.0.0.1:50051", demo_server.target)
    assert demo_server.target in source
    run = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    if output:
        assert run.stdout == output
