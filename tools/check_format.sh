#!/usr/bin/env bash
# Fails when clang-format would change a tracked C++ file. Exits 77, which ctest counts as skipped,
# where clang-format or the git checkout is absent.
#
# usage: check_format.sh [--fix]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang-format >/dev/null; then
  echo "clang-format is not installed: nothing checked"
  exit 77
fi
if ! files=$(git ls-files -- '*.h' '*.cc' '*.cu' '*.cuh' 2>/dev/null); then
  echo "not a git checkout: nothing checked"
  exit 77
fi
# Files deleted but not yet committed are still listed.
mapfile -t present < <(for file in $files; do [[ -f $file ]] && printf '%s\n' "$file"; done)

if [[ ${1-} == --fix ]]; then
  clang-format -i -- "${present[@]}"
else
  clang-format --dry-run -Werror --ferror-limit=3 -- "${present[@]}"
fi
echo "${#present[@]} files"
