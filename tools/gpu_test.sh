#!/usr/bin/env bash
# Runs the GPU tests of a bundle (tools/gpu_bundle.sh) on a machine with an NVIDIA GPU: every operation
# and every golden model against the float64 reference, and the same goldens through mneme-logits.
# Prints one line per program, and the output of those that failed; what tests measured is in the log.
#
# usage: run.sh [--sanitize TOOL] [--only PATTERN] [--filter GTEST_FILTER] [--jobs N] [--timeout S]
#               [--log FILE]
#   --sanitize  memcheck, racecheck, initcheck or synccheck: under compute-sanitizer, without the
#               cases that this file names as too long for it
#   --only      programs whose names match this shell pattern
#   --filter    cases, as --gtest_filter; default: those over CUDA
#   --jobs      programs at a time; default: half of the processors, at most 8
#   --timeout   seconds that a program may take; default: 900
#   --log       where the whole output goes; default: gpu_test.log here
set -uo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

sanitize=
only='*'
filter='*cuda*:Cuda*'
jobs=$(($(nproc) / 2))
jobs=$((jobs < 1 ? 1 : jobs > 8 ? 8 : jobs))
timeout=900
log=gpu_test.log
while (($# > 0)); do
  case $1 in
    --sanitize | --only | --filter | --jobs | --timeout | --log)
      if (($# < 2)); then
        echo "run.sh: $1 wants a value" >&2
        exit 2
      fi
      case $1 in
        --sanitize) sanitize=$2 ;;
        --only) only=$2 ;;
        --filter) filter=$2 ;;
        --jobs) jobs=$2 ;;
        --timeout) timeout=$2 ;;
        --log) log=$2 ;;
      esac
      shift
      ;;
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
if [[ ! -f $bundle/gpu_tests.txt || ! -d $bundle/data ]]; then
  echo "run.sh: $bundle is no bundle; tools/gpu_bundle.sh makes one, with this script in it" >&2
  exit 2
fi
if [[ ! $jobs =~ ^[1-9][0-9]*$ || ! $timeout =~ ^[1-9][0-9]*$ ]]; then
  echo "run.sh: --jobs $jobs, --timeout $timeout: expected numbers above 0" >&2
  exit 2
fi
log=$(realpath -m -- "$log")
if ! : >"$log"; then
  echo "run.sh: --log $log: cannot be written" >&2
  exit 2
fi

export LD_LIBRARY_PATH=$bundle/lib:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export MNEME_TEST_DEVICE=cuda MNEME_BIN_DIR=$bundle/bin
prefix=(timeout --kill-after 5 "$timeout")
if [[ -n $sanitize ]]; then
  prefix+=(compute-sanitizer --tool "$sanitize" --error-exitcode 99)
  if [[ $sanitize == racecheck ]]; then
    # Kernels in which warps hand shared memory over in ways that racecheck reports where they are right, too, as
    # racecheck_probe.cu shows: rings of bulk copies in LayersKernel (decode/stack/kernel.cuh), StreamKernel
    # (matrix_memory/persistent/stream.cuh) and RingKernel (matrix_memory/held/ring.cuh), at whose barriers a lane arrives
    # for its warp; HeldStepsKernel (neural_memory/resident/held.cu) also has a bar.sync behind other warps' bar.arrive.
    # Races in all else that they share go unseen with them. Version 2026.4 also reports WeighChoice's reads in
    # LayersKernel against the next layer's Choose, between which lie barriers of all the warps that do either.
    left_out_kernels=(LayersKernel StreamKernel RingKernel HeldStepsKernel)
    probe=0
    "${prefix[@]}" "$bundle/bin/racecheck_probe" >>"$log" 2>&1 || probe=$?
    if ((probe == 99)); then
      echo "run.sh: leaves ${left_out_kernels[*]} out: of what they do racecheck tells races in racecheck_probe.cu, too" >&2
      for kernel in "${left_out_kernels[@]}"; do prefix+=(--kernel-name-exclude "kns=$kernel"); done
    elif ((probe != 0)); then
      echo "run.sh: racecheck_probe ended with $probe, expected 0 or, with races, 99; see $log" >&2
      exit 1
    fi
  fi
fi

outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT

# Cases that are left out under compute-sanitizer: those that take minutes there, whose kernels others
# launch as well, and those that it cannot look at. Patterns as --gtest_filter has them after its minus.
left_out() {
  case $1 in
    long_sequence_test) echo '*' ;;  # 40,000 steps; decode_batch_test and model_state_test do the same
    rounded_golden_test) echo '*EveryPosition*' ;;  # thousands of steps, as decode_batch_test's
    state_dtype_test) echo '*CoarseState*' ;;       # thousands of steps, as StateCopyTest's
    # Allocations that fail, which memcheck reports; how much there is, which it changes.
    device_memory_test) echo '*TooMuch*:*Beyond*:*AllThatIsLeft*' ;;
    cuda_logits_tool_test) echo '*' ;;  # runs nothing itself; golden_test launches the kernels
  esac
  # Looking at shared memory takes longer.
  if [[ $sanitize == racecheck ]]; then
    case $1 in
      delta_chunk_test) echo '*SixtyFour*:*Splitting*' ;;  # long prompts, through the same chunks
      gated_delta_rule_test) echo '*LongRun*' ;;           # 20,000 tokens
      delta_memory_pass_test) echo '*LongRun*' ;;          # 65,536
      pending_writes_test) echo '*BatchesOfEverySize*' ;;  # 80 large memories, as decode_batch_test's
      linear_test) echo '*ManyRows*' ;;                    # sizes, of kernels that others launch
      linear_groups_test) echo '*BigGroups*' ;;            # likewise
    esac
  fi
}

# run_test NAME: its output goes to $outputs/NAME, its line to the terminal.
run_test() {
  local name=$1 cases=$filter start=$SECONDS status summary
  if [[ -n $sanitize && -n $(left_out "$name") ]]; then
    if [[ $(left_out "$name") == '*' ]]; then
      printf 'skipped %-28s         %s leaves it out\n' "$name" "$sanitize"
      return
    fi
    cases+=-$(left_out "$name")
  fi
  "${prefix[@]}" "$bundle/tests/$name" --gtest_filter="$cases" >"$outputs/$name" 2>&1
  status=$?
  summary=$(grep -E '^\[  PASSED  \]|^========= (ERROR|RACECHECK) SUMMARY' "$outputs/$name" |
    sed -E 's/^[^A-Z]*//; s/  \] /: /' | paste -sd ' ')
  if ((status == 0)) && ! grep -qE '^\[  PASSED  \] [1-9]' "$outputs/$name"; then
    printf 'none    %-28s         no case is called so\n' "$name"
  elif ((status == 0)); then
    touch "$outputs/passed"
    printf 'ok      %-28s %4d s  %s\n' "$name" $((SECONDS - start)) "$summary"
  else
    # One write, so that programs that end together keep their lines.
    printf 'FAILED  %-28s %4d s  exit %d  %s\n%s\n' "$name" $((SECONDS - start)) $status "$summary" \
      "$(grep -vE '^\[( +OK |=+|-+| RUN  )' "$outputs/$name" | head -60)"
    touch "$outputs/failed"
  fi
  # At once: if this script is stopped, what has ended is on record.
  (
    flock 9
    printf '##### %s\n' "$name"
    cat "$outputs/$name"
  ) 9>"$outputs/lock" >>"$log"
}

cd "$bundle/data" || exit 1
while read -r name; do
  # shellcheck disable=SC2053  # a pattern
  [[ $name == $only ]] || continue
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  run_test "$name" &
done <"$bundle/gpu_tests.txt"
wait
if [[ -e $outputs/failed ]]; then exit 1; fi
if [[ ! -e $outputs/passed ]]; then
  echo "run.sh: nothing ran: --only '$only', --filter '$filter'" >&2
  exit 1
fi
