#!/usr/bin/env bash
# Measures on a GPU everything that the project has marks for (bench/README.md, On a GPU): the
# kernel of the delta rule, beside flash-linear-attention's where that is installed, and decoding and
# prompts through the engine, each beside the copy bandwidth of the same run. Prints the table of marks
# last. Takes a minute or two, and wants the GPU to itself.
#
# usage: bench/run_gpu.sh [--build DIR] [--out DIR] [--python PROGRAM]
#   --build   a build with MNEME_CUDA=ON, or a bundle (tools/gpu_bundle.sh); default: the bundle that
#             this script is in, else build/cuda, made if need be
#   --out     where results go; default: gpu-bench-results here
#   --python  has torch with CUDA and flash-linear-attention (pip install flash-linear-attention);
#             default: python3. Without them nothing is compared.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

build=
out=gpu-bench-results
python=python3
while (($# > 0)); do
  case $1 in
    --build | --out | --python)
      if (($# < 2)); then
        echo "run_gpu.sh: $1 wants a value" >&2
        exit 2
      fi
      case $1 in
        --build) build=$2 ;;
        --out) out=$2 ;;
        --python) python=$2 ;;
      esac
      shift
      ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run_gpu.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
  shift
done

if [[ -z $build && -x $here/../bin/gpu_bench ]]; then
  build=$here/..
elif [[ -z $build ]]; then
  build=$here/../build/cuda
  (
    cd "$here/.."
    tools/setup.sh
    cmake --preset cuda >/dev/null
    cmake --build --preset cuda -j "$(nproc)" --target mneme_cuda gpu_bench cuda_delta_rule_bench
  )
fi
for program in cuda_delta_rule_bench gpu_bench; do
  if [[ ! -x $build/bin/$program ]]; then
    echo "run_gpu.sh: $build/bin/$program is missing: expected a build with MNEME_CUDA=ON, or a bundle" >&2
    exit 2
  fi
done
for program in nvidia-smi python3; do
  if ! command -v "$program" >/dev/null; then
    echo "run_gpu.sh: there is no $program here; it takes a machine with an NVIDIA GPU, and Python" >&2
    exit 2
  fi
done
mkdir -p "$out"
export LD_LIBRARY_PATH=$build/lib:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

{
  date -u +'%Y-%m-%d %H:%M UTC'
  if [[ -f $build/version.txt ]]; then cat "$build/version.txt"; else git -C "$here" describe --always --dirty; fi
  nvidia-smi --query-gpu=name,driver_version,memory.used,memory.total,clocks.max.sm --format=csv,noheader
} | tee "$out/host.txt"

# measure NAME COMMAND..: its figures go to NAME.json, which it gets as --json. What one cannot measure
# does not keep the others from it.
results=()
failed=()
measure() {
  local name=$1
  shift
  echo "==== $name"
  rm -f "$out/$name.json"
  "$@" --json "$out/$name.json" | tee "$out/$name.txt" || failed+=("$name")
  if [[ -f $out/$name.json ]]; then results+=("$out/$name.json"); fi
}

measure delta_rule "$build/bin/cuda_delta_rule_bench"
if "$python" -c 'import torch, fla; assert torch.cuda.is_available()' 2>"$out/fla_missing.txt"; then
  measure fla "$python" "$here/fla_delta_rule.py"
else
  echo "==== fla: not measured: $(tail -n 1 "$out/fla_missing.txt")"
fi
measure gpu_bench "$build/bin/gpu_bench"

echo "==== marks"
if ((${#results[@]} > 0)); then
  python3 "$here/gpu_marks.py" "${results[@]}" | tee "$out/marks.md" || failed+=(marks)
fi
if ((${#failed[@]} > 0)); then
  echo "run_gpu.sh: failed: ${failed[*]}" >&2
  exit 1
fi
