#!/usr/bin/env python3
"""The checks of tools/check_deploy.sh, which makes the environment that this needs."""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import compose_spec
import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
# The oldest whose kubectl knows all that the kustomizations use, and the newest that there is.
KUBERNETES_VERSIONS = ("1.27.0", kubernetes_validate.latest_version())
# systemd's measure is 0 to 10; the unit had 1.2, with the drop-in for GPUs 1.4.
MAX_EXPOSURE = 2.0

# Fields of the operator's resources, for when its definitions are not at hand.
OPERATOR_FIELDS = {
    "PodMonitor": {
        "spec": {"jobLabel", "podTargetLabels", "selector", "namespaceSelector",
                 "podMetricsEndpoints", "sampleLimit"},
        "spec.podMetricsEndpoints[]": {"port", "path", "scheme", "interval", "scrapeTimeout",
                                       "honorLabels", "relabelings", "metricRelabelings"},
        "spec.podMetricsEndpoints[].relabelings[]": {
            "sourceLabels", "separator", "targetLabel", "regex", "modulus", "replacement", "action"
        },
    },
    "PrometheusRule": {
        "spec": {"groups"},
        "spec.groups[]": {"name", "interval", "rules", "labels", "limit"},
        "spec.groups[].rules[]": {"record", "alert", "expr", "for", "keep_firing_for", "labels",
                                  "annotations"},
    },
}  # fmt: skip

failures = 0


def report(what: str, error: object = None) -> None:
    global failures
    if error is None:
        print(f"ok      {what}")
    else:
        failures += 1
        print(f"FAILED  {what}: {error}")


def at(resource: object, path: str) -> list:
    """The values at a path such as spec.groups[].rules[]."""
    values = [resource]
    for step in path.split("."):
        values = [v[step.removesuffix("[]")] for v in values if step.removesuffix("[]") in v]
        if step.endswith("[]"):
            values = [item for value in values for item in value]
    return values


def check_operator_resource(resource: dict, definitions: dict[str, dict]) -> str:
    """How it was checked. Raises if something is wrong."""
    kind = resource["kind"]
    if kind in definitions:
        jsonschema.validate(resource, definitions[kind])
        return "its definition"
    for path, known in OPERATOR_FIELDS[kind].items():
        for value in at(resource, path):
            if unknown := set(value) - known:
                raise ValueError(f"{path} has unknown fields: {', '.join(sorted(unknown))}")
    return "known fields"


def close(schema: object) -> object:
    """The schema, refusing fields that it does not name, as a cluster would drop them."""
    if isinstance(schema, list):
        return [close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: close(value) for name, value in schema.items()}
    if isinstance(closed.get("properties"), dict) and "type" in closed:
        closed.setdefault("additionalProperties", False)
    # Kubernetes' own extension, for ports and quantities.
    if closed.get("x-kubernetes-int-or-string"):
        closed = {"type": ["integer", "string"]}
    # Go lets a flag stand anywhere in an expression, Python in front.
    if isinstance(pattern := closed.get("pattern"), str) and "(?i)" in pattern:
        closed["pattern"] = "(?i)" + pattern.replace("(?i)", "")
    return closed


def read_definitions(files: list[Path]) -> dict[str, dict]:
    definitions = {}
    for file in files:
        spec = yaml.safe_load(file.read_text())["spec"]
        version = next(v for v in spec["versions"] if v["name"] == "v1")
        schema = close(version["schema"]["openAPIV3Schema"])
        # The server's own part of each object, which the definition leaves open.
        schema["properties"]["metadata"] = {"type": "object"}
        definitions[spec["names"]["kind"]] = schema
    return definitions


def check_dashboards(config_map: dict) -> None:
    """Raises unless each entry is one that Grafana's sidecar can load."""
    for file, text in config_map["data"].items():
        dashboard = json.loads(text)  # JSONDecodeError is a ValueError
        if not file.endswith(".json") or not dashboard["uid"] or not dashboard["panels"]:
            raise ValueError(f"{file}: expected a .json file of a dashboard with uid and panels")


def check_manifests(what: str, text: str, definitions: dict[str, dict]) -> None:
    resources = [r for r in yaml.safe_load_all(text) if r is not None]
    for resource in resources:
        name = f"{what}: {resource['kind']} {resource['metadata']['name']}"
        try:
            if resource["apiVersion"].startswith("monitoring.coreos.com/"):
                name += f" by {check_operator_resource(resource, definitions)}"
            else:
                for version in KUBERNETES_VERSIONS:
                    kubernetes_validate.validate(resource, version, strict=True)
            if "grafana_dashboard" in resource["metadata"].get("labels", {}):
                name += " with a dashboard"
                check_dashboards(resource)
        except jsonschema.ValidationError as error:
            report(name, f"{error.json_path}: {error.message}")
        except (ValueError, kubernetes_validate.utils.SchemaNotFoundError) as error:
            report(name, error)
        else:
            report(name)


def check_kubernetes(definitions: dict[str, dict]) -> None:
    print(f"Kubernetes {' and '.join(KUBERNETES_VERSIONS)}, strictly")
    folder = DEPLOY / "kubernetes"
    check_manifests(
        "secret.example.yaml", (folder / "secret.example.yaml").read_text(), definitions
    )
    for path in sorted(folder.glob("**/kustomization.yaml")):
        if yaml.safe_load(path.read_text())["kind"] == "Component":
            continue  # Part of an overlay.
        name = str(path.parent.relative_to(folder))
        made = subprocess.run(
            ["kubectl", "kustomize", path.parent], capture_output=True, text=True, check=False
        )
        if made.returncode != 0 or made.stderr:
            report(name, made.stderr)
        check_manifests(name, made.stdout, definitions)


def with_defaults(text: str) -> str:
    """The variables of a compose file replaced by their defaults, or by a name."""
    return re.sub(r"\$\{\w+(?::-([^}]*)|:\?[^}]*)\}", lambda m: m.group(1) or "example", text)


def check_compose() -> None:
    print("Compose")
    for path in sorted(DEPLOY.glob("compose*.yaml")):
        try:
            compose_spec.PyCompose.from_yaml(with_defaults(path.read_text()))
        except ValueError as error:
            report(path.name, error)
        else:
            report(path.name)


def systemd_analyze(*arguments: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise ValueError(output)
    return output


def check_unit() -> None:
    print("systemd")
    unit = "mneme-server.service"
    for dropped in (False, True):
        with tempfile.TemporaryDirectory() as root:
            # All that the unit names has to be there: programs, and the targets that services are in.
            shutil.copytree("/lib/systemd/system", f"{root}/lib/systemd/system", symlinks=True)
            units = Path(root) / "etc/systemd/system"
            units.mkdir(parents=True)
            for program in ("usr/local/bin/mneme-server", "bin/kill"):
                stand_in = Path(root) / program
                stand_in.parent.mkdir(parents=True)
                stand_in.write_text("#!/bin/sh\n")
                stand_in.chmod(0o755)
            shutil.copy(DEPLOY / "systemd" / unit, units)
            if dropped:
                shutil.copytree(DEPLOY / "systemd" / f"{unit}.d", units / f"{unit}.d")
            name = f"{unit} {'with' if dropped else 'without'} {unit}.d"
            try:
                said = systemd_analyze("verify", f"--root={root}", "--man=no", unit)
                ours = [line for line in said.splitlines() if unit in line]
                report(name, "\n".join(ours) or None)
                threshold = f"--threshold={MAX_EXPOSURE * 10:.0f}"
                said = systemd_analyze(
                    "security", "--offline=true", f"--root={root}", threshold, unit
                )
                report(re.search(r"Overall exposure level.*: [\d.]+ \w+", said).group())
            except ValueError as error:
                report(name, error)


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--crd", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    check_kubernetes(read_definitions(arguments.crd))
    check_compose()
    check_unit()
    print("All is well" if failures == 0 else f"{failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
