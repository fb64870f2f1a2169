#!/usr/bin/env python3
"""Fails if an object file built for one instruction set offers its code to others.

usage: check_isa_symbols.py ISA OBJECT...

A function that such a file defines has to live in namespace mneme::ISA and must not be weak: the
linker keeps one of several weak definitions, and one with AVX-512 instructions would then run on
processors that lack them.
"""

import subprocess
import sys


def violations(isa, listing):
    """The offending lines of `nm --demangle --defined-only` output."""
    for line in listing.splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) != 3:
            continue
        _, kind, symbol = parts
        if kind in "TWui" and f"mneme::{isa}::" not in symbol:
            yield f"{symbol} is visible outside and not in namespace mneme::{isa}"
        elif kind in "Wui":
            yield f"{symbol} is weak"


def main():
    isa, objects = sys.argv[1], sys.argv[2:]
    if not objects:
        sys.exit(__doc__)
    count = 0
    for path in objects:
        listing = subprocess.run(
            ["nm", "--demangle", "--defined-only", path], check=True, capture_output=True, text=True
        ).stdout
        for violation in violations(isa, listing):
            print(f"{path}: {violation}")
            count += 1
    print(f"{len(objects)} objects, {count} violations")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
