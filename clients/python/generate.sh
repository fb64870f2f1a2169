#!/bin/sh
# Writes the generated messages into src/mneme/v1, for working on the package without installing
# it. Needs grpcio-tools; PYTHON names the interpreter that has them.
set -eu
exec "${PYTHON:-python3}" "$(dirname "$0")/setup.py" generate
