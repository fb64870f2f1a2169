"""tests/soak for a few seconds; bench/measured/soak.md has a run of ten minutes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "soak" / "soak.py"


@pytest.mark.skipif(
    bool(os.environ.get("MNEME_SANITIZED")), reason="sanitizers keep memory that is free"
)
def test_nothing_is_left_after_hard_work(bin_dir):
    done = subprocess.run(
        [sys.executable, SOAK, "--bin-dir", bin_dir, "--duration", "12s"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
