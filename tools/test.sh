#!/usr/bin/env bash
# Everything between a bare Debian 12 and a tested Mneme: installs what is missing, builds, and runs
# every test that needs no GPU, then the same tests under sanitizers. Re-running takes seconds where
# nothing changed, apart from the tests themselves.
#
# usage: tools/test.sh [--quick] [--tsan] [--slow]
#   --quick   no sanitizer builds
#   --tsan    also under ThreadSanitizer
#   --slow    also the tests labelled slow: fuzzing for a minute each, long sequences
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sanitizers=(asan)
slow=false
for argument in "$@"; do
  case $argument in
    --quick) sanitizers=() ;;
    --tsan) sanitizers+=(tsan) ;;
    --slow) slow=true ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: unknown argument $argument; see --help" >&2; exit 2 ;;
  esac
done

jobs=$(nproc)
test_jobs=$((jobs + 1))  # One more than cores: those that drive a server from Python wait half of the time.
phase_name=
phase_start=0
summary=()
phase() {
  finish_phase
  phase_name=$1
  phase_start=$SECONDS
  printf '\n==== %s\n' "$phase_name"
}
finish_phase() {
  if [[ -n $phase_name ]]; then
    summary+=("$(printf '%-44s %5d s' "$phase_name" $((SECONDS - phase_start)))")
    phase_name=
  fi
}
report() {
  local status=$?
  if ((status != 0)); then
    printf '\nFAILED in: %s\n' "$phase_name"
  fi
  exit "$status"
}
trap report EXIT

# build PRESET: configures and builds everything of it.
build() {
  cmake --preset "$1" >"build/$1.configure.log" || {
    cat "build/$1.configure.log"
    return 1
  }
  cmake --build --preset "$1" -j "$jobs"
}

mkdir -p build
phase "Install what is missing"
tools/setup.sh
python=
if [[ -f clients/python/pyproject.toml ]]; then
  python=$(tools/python_env.sh)  # Tests that drive the server from Python are skipped without it.
fi

phase "Build: Release, warnings are errors"
build ci

phase "Test: unit, integration, golden"
ctest --preset ci -j "$test_jobs"

if [[ -n $python ]]; then
  phase "Test: Python client"
  MNEME_BIN_DIR=$PWD/build/ci/bin "$python" -m pytest -q clients/python

  phase "Test: demo model"
  "$python" -m pytest -q -p no:cacheprovider demo/tests  # What needs PyTorch is skipped.
fi

if $slow; then
  phase "Test: slow"
  ctest --test-dir build/ci --output-on-failure -L slow -LE gpu -j "$jobs"
fi

for preset in ${sanitizers[@]+"${sanitizers[@]}"}; do
  phase "Build: $preset"
  build "$preset"
  phase "Test: $preset"
  ctest --preset "$preset" -j "$jobs"
done

finish_phase
printf '\n==== All tests passed\n'
printf '%s\n' "${summary[@]}"
