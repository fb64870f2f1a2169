#!/usr/bin/env bash
# Makes a Python environment with the client of clients/python and what its tests and those of the demo
# model need, in build/python, and prints the path of its interpreter. Does nothing when it is up to date.
#
# usage: python=$(tools/python_env.sh)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=$PWD/build/python
project=clients/python/pyproject.toml
stamp=$environment/.installed
interpreter=$environment/bin/python

if [[ ! -x $interpreter ]] || ! cmp -s "$project" "$stamp"; then
  rm -rf "$environment"
  python3 -m venv "$environment" >&2
  # Editable, so that the tests see the sources as they are.
  "$interpreter" -m pip install --quiet --disable-pip-version-check --editable 'clients/python[test,demo]' >&2
  cp "$project" "$stamp"
fi
echo "$interpreter"
