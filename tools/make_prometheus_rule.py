#!/usr/bin/env python3
"""Writes deploy/kubernetes/components/monitoring/prometheus_rule.yaml from deploy/prometheus.

The Prometheus operator wants rules inside a resource of its own; a test compares the two.

usage: make_prometheus_rule.py [--check]
  --check   writes nothing, and fails if the file is not what would be written
"""

import sys
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
SOURCES = ("recording_rules.yml", "alerts.yml")
TARGET = DEPLOY / "kubernetes/components/monitoring/prometheus_rule.yaml"
HEAD = """\
# Made from deploy/prometheus by tools/make_prometheus_rule.py: change the rules there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: mneme
spec:
  groups:
"""


def groups(path: Path) -> str:
    """What stands below `groups:`, indented to stand below `spec.groups`."""
    before, found, after = path.read_text().partition("\ngroups:\n")
    if not found or any(not line.startswith("#") for line in before.splitlines()):
        raise SystemExit(f"{path}: expected comments, `groups:` and nothing else at the top level")
    return "".join(f"  {line}\n" if line else "\n" for line in after.splitlines())


def main() -> int:
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    text = HEAD + "\n".join(groups(DEPLOY / "prometheus" / name) for name in SOURCES)
    if not arguments:
        TARGET.write_text(text)
    elif not TARGET.is_file() or TARGET.read_text() != text:
        print(f"{TARGET} is not made from deploy/prometheus: run {__file__}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
