#!/usr/bin/env bash
# Collects everything that the GPU tests and benches need, programs and their libraries and data, in one
# folder, so that a machine with a GPU and no build tools can run them:
#
#   cmake --preset cuda && cmake --build --preset cuda
#   tools/gpu_bundle.sh --out gpu-bundle        # copy the folder to the machine with the GPU
#   gpu-bundle/run.sh                           # there: the tests
#   gpu-bundle/bench/run_gpu.sh                 # there: the benches
#
# usage: tools/gpu_bundle.sh [--build DIR] [--library FILE] --out DIR
#   --build    a build with MNEME_CUDA=ON; default: build/cuda
#   --library  a libmneme_cuda.so to take in place of that build's: one for other GPUs
#   --out      the folder to make; a bundle that is there is replaced
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/cuda
library=
out=
while (($# > 0)); do
  case $1 in
    --build | --library | --out)
      if (($# < 2)); then
        echo "gpu_bundle.sh: $1 wants a value" >&2
        exit 2
      fi
      case $1 in
        --build) build=$(realpath -m -- "$2") ;;
        --library) library=$(realpath -m -- "$2") ;;
        --out) out=$(realpath -m -- "$2") ;;
      esac
      shift
      ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "gpu_bundle.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
if [[ -z $out ]]; then
  echo "gpu_bundle.sh: --out is missing; see --help" >&2
  exit 2
fi
if [[ ! -f $build/gpu_tests.txt ]]; then
  echo "gpu_bundle.sh: $build/gpu_tests.txt is missing: configure with -DMNEME_CUDA=ON" >&2
  exit 1
fi
if [[ -n $library && ! -f $library ]]; then
  echo "gpu_bundle.sh: --library $library: no such file" >&2
  exit 2
fi
if [[ -d $out && -n $(ls -A "$out") && ! -f $out/gpu_tests.txt ]]; then
  echo "gpu_bundle.sh: --out $out: holds something else than a bundle; expected a new or empty folder" >&2
  exit 2
fi

cd "$root"
rm -rf "$out"
mkdir -p "$out/tests" "$out/bin" "$out/lib"
while read -r test; do
  strip -o "$out/tests/$test" "$build/tests/bin/$test"
done <"$build/gpu_tests.txt"
for program in "$build"/bin/*; do
  # The CPU's own benches want oneDNN, and have nothing to do there.
  case ${program##*/} in engine_bench | kernel_bench) continue ;; esac
  if [[ -f $program && -x $program ]]; then strip -o "$out/bin/${program##*/}" "$program"; fi
done

# Libraries that every Linux has, or that come with the driver and the CUDA toolkit, stay behind.
# Our own may need others that no program names.
ldd "$out"/tests/* "$out"/bin/* "$build"/lib/*.so | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(ld-linux|libc|libm|libdl|librt|libpthread|libcuda|libcudart|libcublas|libcublasLt|libnvidia)[.-]' |
  while read -r needed; do cp -L "$needed" "$out/lib/"; done
cp -L "$build"/lib/*.so "$out/lib/"
if [[ -n $library ]]; then cp -L "$library" "$out/lib/libmneme_cuda.so"; fi
strip --strip-unneeded "$out"/lib/*.so

mkdir -p "$out/data/tests"
cp -r tests/golden "$out/data/tests/golden"
cp tools/gpu_test.sh "$out/run.sh"
mkdir "$out/bench"
cp bench/run_gpu.sh bench/gpu_marks.py bench/run_rule.sh bench/join_rules.py bench/fla_*.py bench/cold_graph.py bench/prompt_times.py "$out/bench/"
cp "$build/gpu_tests.txt" "$out/gpu_tests.txt"
git describe --always --dirty >"$out/version.txt" 2>/dev/null || echo "no git here" >"$out/version.txt"
du -sh "$out"
