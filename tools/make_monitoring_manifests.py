#!/usr/bin/env python3
"""Writes what Kubernetes wants in resources of its own: rules and dashboard.

  deploy/prometheus/{recording_rules,alerts}.yml  ->  components/monitoring/prometheus_rule.yaml
  deploy/grafana/dashboards/mneme.json            ->  components/grafana/dashboard.yaml

Kustomize reads no file outside a component's folder, so these are copies; a test compares them.

usage: make_monitoring_manifests.py [--check]
  --check   writes nothing, and fails if a file is not what would be written
"""

import sys
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
COMPONENTS = DEPLOY / "kubernetes/components"
RULES = ("recording_rules.yml", "alerts.yml")
DASHBOARD = "mneme.json"
RULE_HEAD = """\
# Made from deploy/prometheus by tools/make_monitoring_manifests.py: change the rules there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: mneme
spec:
  groups:
"""
DASHBOARD_HEAD = f"""\
# Made from deploy/grafana by tools/make_monitoring_manifests.py: change the dashboard there.
apiVersion: v1
kind: ConfigMap
metadata:
  name: mneme-dashboard
  labels:
    # The sidecar of Grafana's Helm charts looks for it.
    grafana_dashboard: "1"
data:
  {DASHBOARD}: |
"""


def indented(lines: list[str], indent: str) -> str:
    return "".join(f"{indent}{line}\n" if line else "\n" for line in lines)


def groups(path: Path) -> str:
    """The part below `groups:`, indented to stand below `spec.groups`."""
    before, found, after = path.read_text().partition("\ngroups:\n")
    if not found or any(not line.startswith("#") for line in before.splitlines()):
        raise SystemExit(f"{path}: expected comments, `groups:` and nothing else at the top level")
    return indented(after.splitlines(), "  ")


def manifests() -> dict[Path, str]:
    rules = RULE_HEAD + "\n".join(groups(DEPLOY / "prometheus" / name) for name in RULES)
    dashboard = (DEPLOY / "grafana/dashboards" / DASHBOARD).read_text()
    return {
        COMPONENTS / "monitoring/prometheus_rule.yaml": rules,
        COMPONENTS / "grafana/dashboard.yaml": DASHBOARD_HEAD
        + indented(dashboard.splitlines(), "    "),
    }


def main() -> int:
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    code = 0
    for path, text in manifests().items():
        if not arguments:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            print(f"{path} is not what it is made from: run {__file__}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
