#!/usr/bin/env bash
# Installs the Python client as a user does, and runs its tests: with the oldest grpcio and protobuf that it
# takes, and with the newest there are. Fails if the installation leaves anything in the source tree, or if the
# client is bound to the releases of the day. Needs a package index, and takes a minute or two.
#
# usage: tools/check_python_package.sh [PYTHON]    (python3)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${1:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Everything below clients/python, ignored files too.
listing() { find clients/python -type f ! -name '*.pyc' | LC_ALL=C sort; }

listing >"$scratch/before"
"$python" -m venv "$scratch/newest"
"$scratch/newest/bin/pip" install --quiet --disable-pip-version-check './clients/python[test]'
"$scratch/newest/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$scratch/wheel" ./clients/python
listing >"$scratch/after"
if ! diff -u "$scratch/before" "$scratch/after"; then
  echo "pip install left files in the source tree" >&2
  exit 1
fi

# The lower bounds of pyproject.toml, as far as there are wheels of them for this Python.
"$python" -m venv "$scratch/oldest"
mapfile -t oldest < <("$scratch/oldest/bin/python" - "$scratch"/wheel/*.whl <<'END'
import re
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode()
    generated = [n for n in wheel.namelist() if n.endswith("_pb2_grpc.py")]
if generated:
    sys.exit(f"the wheel has generated code: {generated}")
bounds = dict(re.findall(r"^Requires-Dist: (\w+)>=([\d.]+)$", metadata, re.MULTILINE))
assert bounds.keys() == {"grpcio", "protobuf"}, metadata
for package, version in bounds.items():
    print(f"{package}=={version}.*")
print(f"grpcio-health-checking=={bounds['grpcio']}.*")
print(f"grpcio-reflection=={bounds['grpcio']}.*")
END
)
"$scratch/oldest/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "${oldest[@]}" \
  "$scratch"/wheel/*.whl pytest pytest-timeout googleapis-common-protos pyyaml

for which in oldest newest; do
  "$scratch/$which/bin/pip" list --disable-pip-version-check --format freeze | grep -E '^(grpcio|protobuf)=='
  (cd clients/python && "$scratch/$which/bin/python" -m pytest -q -p no:cacheprovider)
done
