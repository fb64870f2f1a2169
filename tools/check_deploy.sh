#!/usr/bin/env bash
# Checks what is in deploy/ against schemas, which tests without a network cannot do: the Kubernetes
# manifests as kustomize makes them, the compose files, the systemd unit.
#
# usage: tools/check_deploy.sh [--crd FILE]...
#   --crd FILE   a CustomResourceDefinition (YAML) of the Prometheus operator, to check PodMonitor and
#                PrometheusRule with; otherwise their resources are only looked through for known fields
#
# Needs kubectl 1.27 or later, systemd-analyze (Debian package systemd), and an index of Python packages
# for the schemas, which it puts into an environment of its own in build/deploy_check. Fails unless all
# is well, and prints how exposed the unit is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

missing=false
for program in kubectl systemd-analyze python3; do
  command -v "$program" >/dev/null || { echo "check_deploy.sh: $program is missing" >&2; missing=true; }
done
if $missing; then exit 1; fi

environment=build/deploy_check
if [[ ! -e $environment/.installed ]]; then
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check \
    'kubernetes-validate>=1.31' 'compose-spec>=0.2' 'jsonschema>=4' 'pyyaml>=6'
  touch "$environment/.installed"
fi
exec "$environment/bin/python" tools/check_deploy.py "$@"
