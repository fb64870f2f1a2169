#!/usr/bin/env bash
# Runs the GPU tests of a bundle (tools/gpu_bundle.sh) on a machine with an NVIDIA GPU: every operation
# and every golden model against the float64 reference. Prints one line per program, and the output of
# those that failed.
#
# usage: run.sh [--sanitize TOOL] [--only PATTERN] [--filter GTEST_FILTER] [--log FILE]
#   --sanitize  memcheck, racecheck, initcheck or synccheck: under compute-sanitizer, which takes long
#   --only      programs whose names match this shell pattern
#   --filter    cases, as --gtest_filter; default: those over CUDA
#   --log       where the whole output goes; default: gpu_test.log here
set -uo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

sanitize=
only='*'
filter='*cuda*:Cuda*'
log=gpu_test.log
while (($# > 0)); do
  case $1 in
    --sanitize | --only | --filter | --log)
      if (($# < 2)); then
        echo "run.sh: $1 wants a value" >&2
        exit 2
      fi
      case $1 in
        --sanitize) sanitize=$2 ;;
        --only) only=$2 ;;
        --filter) filter=$2 ;;
        --log) log=$2 ;;
      esac
      shift
      ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
log=$(realpath "$log")
: >"$log"

export LD_LIBRARY_PATH=$bundle/lib:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export MNEME_TEST_DEVICE=cuda
prefix=()
if [[ -n $sanitize ]]; then
  prefix=(compute-sanitizer --tool "$sanitize" --error-exitcode 99)
fi

cd "$bundle/data"
failed=0
while read -r test; do
  # shellcheck disable=SC2053  # a pattern
  [[ $test == $only ]] || continue
  start=$SECONDS
  output=$("${prefix[@]}" "$bundle/tests/$test" --gtest_filter="$filter" --gtest_brief=1 2>&1)
  status=$?
  printf '%s\n' "$output" >>"$log"
  summary=$(grep -E '^\[  PASSED  \]' <<<"$output" | tail -1)
  if ((status == 0)); then
    printf 'ok      %-28s %4d s  %s\n' "$test" $((SECONDS - start)) "$summary"
  else
    failed=1
    printf 'FAILED  %-28s %4d s  exit %d\n' "$test" $((SECONDS - start)) "$status"
    printf '%s\n' "$output" | grep -vE '^\[ +OK' | head -40
  fi
done <"$bundle/gpu_tests.txt"
exit $failed
