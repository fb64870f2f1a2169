#!/bin/sh
# Runs these tests with the environment of tools/python_env.sh.
#
# usage: run_tests.sh BIN_DIR [pytest arguments]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=$here/../../../build/python/bin/python
if [ ! -x "$python" ]; then
  echo "skipped: run tools/python_env.sh first"
  exit 77
fi
MNEME_BIN_DIR=$1
export MNEME_BIN_DIR
shift
exec "$python" -m pytest -q -p no:cacheprovider "$here" "$@"
