"""flash-linear-attention's kernels as the training uses them. Import this, not the library.

The library would try up to 25 configurations of each kernel at every start, for minutes. kernel_configs/
names those that won on an H200. One kernel is replaced: see delta_backward.py.
"""

import os
import pathlib

os.environ.setdefault("FLA_CACHE_MODE", "default")
os.environ.setdefault("FLA_CONFIG_DIR", str(pathlib.Path(__file__).parent / "kernel_configs"))

from fla.modules.causal_conv1d import causal_conv1d  # noqa: E402
from fla.ops.gated_delta_rule import chunk, chunk_gated_delta_rule  # noqa: E402

from demo.delta_backward import chunk_gradients  # noqa: E402

chunk.chunk_bwd_dqkwg = chunk_gradients

__all__ = ["causal_conv1d", "chunk_gated_delta_rule"]
