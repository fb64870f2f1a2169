#!/usr/bin/env bash
# Measures on a GPU everything that the project has marks for (bench/README.md, Measured on a GPU): the
# kernel of the delta rule, beside flash-linear-attention's where that is installed, and decoding and
# prompts through the engine, each beside the copy bandwidth of the same run. Prints the table of marks
# last. Takes some five minutes, and wants the GPU to itself.
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
mkdir -p "$out"
export LD_LIBRARY_PATH=$build/lib:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

{
  date -u +'%Y-%m-%d %H:%M UTC'
  git -C "$here" describe --always --dirty 2>/dev/null || true
  nvidia-smi --query-gpu=name,driver_version,memory.used,memory.total,clocks.max.sm --format=csv,noheader
} | tee "$out/host.txt"

results=("$out/delta_rule.json" "$out/gpu_bench.json")
rm -f "$out"/*.json
echo "==== cuda_delta_rule_bench"
"$build/bin/cuda_delta_rule_bench" --json "$out/delta_rule.json" | tee "$out/delta_rule.txt"

echo "==== flash-linear-attention"
if "$python" -c 'import torch, fla; assert torch.cuda.is_available()' 2>"$out/fla_missing.txt"; then
  "$python" "$here/fla_delta_rule.py" --json "$out/fla.json" | tee "$out/fla.txt"
  results+=("$out/fla.json")
else
  echo "not measured: $(tail -n 1 "$out/fla_missing.txt")"
fi

echo "==== gpu_bench"
"$build/bin/gpu_bench" --json "$out/gpu_bench.json" | tee "$out/gpu_bench.txt"

echo "==== marks"
python3 "$here/gpu_marks.py" "${results[@]}" | tee "$out/marks.md"
