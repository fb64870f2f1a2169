#!/usr/bin/env bash
# Makes what a release consists of, so that using it needs no compiler:
#
#   mneme_<version>_<architecture>.deb   server, command line, demo model and a service for systemd, for
#                                        the distribution that this runs on
#   mneme_client-<version>-*.whl         the Python client, which is the same everywhere; and its source
#
# usage: tools/package.sh [--out DIR]
#   --out   where they go; default: build/packages
#
# tools/bare_debian.sh --package tries them where nothing else is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=build/packages
while (($#)); do
  case $1 in
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "package.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
done
mkdir -p "$out"
out=$(realpath "$out")

tools/setup.sh --build-only --package
mkdir -p build
cmake --preset release >build/release.configure.log || { cat build/release.configure.log; exit 1; }
cmake --build --preset release --target mneme-server mneme mneme-make-model
cpack --config build/release/CPackConfig.cmake -B "$out/cpack" >"$out/cpack.log" || {
  cat "$out/cpack.log"
  exit 1
}
mv "$out"/cpack/*.deb "$out/"
rm -rf "$out/cpack" "$out/cpack.log"

# In an environment of its own, from a copy: nothing is left in the tree, and nothing of it is needed.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" -q install build
"$work/venv/bin/python" -m build --outdir "$out" clients/python >"$work/build.log" 2>&1 || {
  cat "$work/build.log"
  exit 1
}
ls -l "$out"
