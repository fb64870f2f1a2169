"""What these tests share with those of the Python client."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "clients" / "python" / "tests"))
