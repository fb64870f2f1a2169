#!/usr/bin/env bash
# Makes a Python environment with the client of clients/python and what its tests and those of the demo
# model need, in build/python, and prints the path of its interpreter. Does nothing when it is up to date.
#
# usage: python=$(tools/python_env.sh)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=$PWD/build/python
project=clients/python/pyproject.toml
interpreter=$environment/bin/python
install() { "$interpreter" -m pip install --quiet --disable-pip-version-check "$@" >&2; }
# The sources of the client's messages; an editable installation keeps those of the day it was made.
messages() { sha256sum clients/python/setup.py proto/mneme/v1/*.proto; }

# Editable, so that the tests see the sources as they are.
if [[ ! -x $interpreter ]] || ! cmp -s "$project" "$environment/.installed"; then
  rm -rf "$environment"
  python3 -m venv "$environment" >&2
  install --editable 'clients/python[test,demo]'
  messages >"$environment/.messages"
  cp "$project" "$environment/.installed"
elif ! cmp -s <(messages) "$environment/.messages"; then
  install --no-deps --editable clients/python
  messages >"$environment/.messages"
fi
echo "$interpreter"
