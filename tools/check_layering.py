#!/usr/bin/env python3
"""Fails on an include that points upward, and on a header where it does not belong.

usage: check_layering.py [ROOT]

The rules are the table of docs/architecture.md, "Layers". Runs as a test.
"""

import pathlib
import re
import sys

# Our folders, and which of them each may include.
LAYERS = {
    "base": {"base"},
    "store": {"store", "base"},
    "kernels": {"kernels", "base"},
    "tokenizers": {"tokenizers", "base"},
    "models": {"models", "kernels", "base"},
    "engine": {"engine", "store", "models", "tokenizers", "kernels", "base"},
    "server": {"server", "engine", "base", "proto"},
    "clients": {"clients", "base", "proto"},
}
UNRESTRICTED = {"tests", "bench", "tools", "proto"}
FOLDERS = set(LAYERS) | UNRESTRICTED

# The façade of the engine is made from a loaded model on a backend, and somebody has to build the
# two: the server's main file and its own helper for that, nothing else of the server.
EXCEPTIONS = {
    ("server", "models"): re.compile(r"^server/(main|load_model)\.(h|cc)$"),
    ("server", "tokenizers"): re.compile(r"^server/(main|load_model)\.(h|cc)$"),
    ("server", "store"): re.compile(r"^server/load_model\.cc$"),
    ("server", "kernels"): re.compile(r"^server/(main|load_model)\.(h|cc)$"),
}

# Third-party headers by their beginning, and the folders that may include them.
THIRD_PARTY = [
    (re.compile(r"^absl/"), {"base", "store", "kernels", "tokenizers", "models", "engine", "server", "clients"}),
    (re.compile(r"^(cuda|cublas|curand|cub/|cooperative_groups|mma\.h|nv_)"), {"kernels"}),
    (re.compile(r"^sentencepiece"), {"tokenizers"}),
    (re.compile(r"^nlohmann/"), {"base", "tokenizers", "models", "server", "clients"}),
    (re.compile(r"^(grpc|grpcpp|google/)"), {"server", "clients"}),
    (re.compile(r"^openssl/"), {"server"}),
    (re.compile(r"^(sqlite3|zstd)\.h$"), {"store"}),
    (re.compile(r"^prometheus/"), {"server"}),
    (re.compile(r"^boost/"), {"server", "clients"}),
    (re.compile(r"^(gtest|gmock)/"), set()),
    (re.compile(r"^png\.h$"), {"base"}),
    (re.compile(r"^zlib\.h$"), set()),
]

# A CUDA file sees CUDA, the C++ standard library and plain headers: Abseil's cost 4 s of compile time.
CUDA_MAY_INCLUDE = re.compile(r"^(base/(log|random)\.h|kernels/)")
CUDA_MUST_NOT_INCLUDE = re.compile(r"^(absl/|kernels/(backend|tensor)\.h$)")

MNEME_CUDA_FILES = {"kernels/backend.cc"}

SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def blank(match):
    """Keeps the line breaks, so that line numbers stay right."""
    return "\n" * match.group().count("\n")


def check_include(path, layer, header):
    """The reason why `path` may not include `header`, or None."""
    first = header.split("/")[0]
    if path.suffix in (".cu", ".cuh") and layer not in UNRESTRICTED:
        if CUDA_MUST_NOT_INCLUDE.match(header):
            return "a CUDA file may not include headers that bring Abseil"
        if first in FOLDERS and not CUDA_MAY_INCLUDE.match(header):
            return (
                "a CUDA file may include base/log.h, base/random.h and the plain headers of kernels/"
                " only"
            )
    if layer in UNRESTRICTED:
        return None
    if header.startswith("kernels/reference/") and not str(path).startswith("kernels/reference/"):
        return "the reference backend is for tests and tools only"
    if first in ("mneme", "proto"):  # generated from proto/mneme/v1
        first = "proto"
    if first in FOLDERS:
        if first in LAYERS[layer]:
            return None
        exception = EXCEPTIONS.get((layer, first))
        if exception and exception.match(str(path)):
            return None
        return f"{layer}/ may not include {first}/"
    for pattern, layers in THIRD_PARTY:
        if pattern.match(header) and layer not in layers:
            return f"{layer}/ may not include <{header}>"
    return None


def check_file(root, path):
    """Yields (line, message) for each violation in the file at root / path."""
    text = (root / path).read_text(encoding="utf-8")
    code = COMMENT.sub(blank, text)
    layer = path.parts[0]
    for match in INCLUDE.finditer(code):
        reason = check_include(path, layer, match.group(1) or match.group(2))
        if reason:
            yield code.count("\n", 0, match.start(match.lastindex)) + 1, reason
    if layer not in UNRESTRICTED and path.as_posix() not in MNEME_CUDA_FILES:
        for match in re.finditer(r"\bMNEME_CUDA\b", code):
            yield (
                code.count("\n", 0, match.start()) + 1,
                "MNEME_CUDA may occur in " + " and ".join(sorted(MNEME_CUDA_FILES)) + " only",
            )
    if path.suffix in (".h", ".cuh") and "#pragma once" not in code:
        yield 1, "a header starts with #pragma once"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    violations = 0
    files = 0
    for folder in sorted(FOLDERS):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SOURCE_SUFFIXES or not path.is_file():
                continue
            files += 1
            path = path.relative_to(root)
            for line, message in check_file(root, path):
                print(f"{path}:{line}: {message}")
                violations += 1
    if files == 0:
        sys.exit(f"no sources found under {root}")
    print(f"{files} files, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
