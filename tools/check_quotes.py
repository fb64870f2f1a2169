#!/usr/bin/env python3
"""Fails on code in CONTRIBUTING.md that is no longer the code of the file it is quoted from.

usage: check_quotes.py [ROOT]

Blocks that name a file after their language (```cpp models/x.cc) are quotes: each paragraph has to
be in the file, line after line, indented as a whole or not. Of blocks of a diff each added line has
to be in the file that `+++` names, in their order. Runs as a test.
"""

import pathlib
import re
import sys

FENCE = re.compile(r"^```(\w+)?(?: (\S+))?$")


def blocks(text):
    """Language, file and lines of each block of code, and the line that it begins in."""
    inside = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence is None:
            if inside is not None:
                inside[3].append(line)
        elif inside is None:
            inside = (number, fence.group(1), fence.group(2), [])
        else:
            yield inside
            inside = None


def paragraphs(lines):
    part = []
    for line in [*lines, ""]:
        if line.strip():
            part.append(line)
        elif part:
            yield part
            part = []


def has(source, part):
    """Whether the lines of `part` are in `source`, all of them moved by the same indentation."""
    for at in range(len(source) - len(part) + 1):
        if not source[at].endswith(part[0]):
            continue
        indent = source[at][: len(source[at]) - len(part[0])]
        if not indent.strip() and all(s == indent + p for s, p in zip(source[at:], part)):
            return True
    return False


def added(lines):
    """File and lines of each part of a diff."""
    path, own = None, []
    for line in lines:
        if line.startswith("+++ "):
            if path is not None:
                yield path, own
            path, own = line[4:], []
        elif line.startswith("+"):
            own.append(line[1:])
    if path is not None:
        yield path, own


def check(root, document):
    errors = []

    def lines_of(path, number):
        try:
            return (root / path).read_text().splitlines()
        except OSError:
            errors.append(f"{document}:{number}: there is no {path}, which is quoted")
            return None

    for number, language, path, lines in blocks((root / document).read_text()):
        if path is not None:
            source = lines_of(path, number)
            for part in paragraphs(lines):
                if source is not None and not has(source, part):
                    errors.append(f"{document}:{number}: {path} has no such lines:\n" + "\n".join(part))
        elif language == "diff":
            for file, own in added(lines):
                source = lines_of(file, number)
                at = 0
                for line in own if source is not None else []:
                    try:
                        at = source.index(line, at) + 1
                    except ValueError:
                        errors.append(f"{document}:{number}: {file} has no such line there: {line}")
    return errors


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    errors = check(root, "CONTRIBUTING.md")
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
