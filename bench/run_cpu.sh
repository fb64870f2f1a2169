#!/usr/bin/env bash
# Measures on a CPU: kernels, the engine, and a real server under load from a real client; results are in
# bench/measured/cpu.md. Takes some 20 minutes on 2 cores and wants the machine to itself.
#
# usage: bench/run_cpu.sh [--quick | --short] [--build DIR] [--out DIR] [--shape NAME]
#   --quick   a trial in two minutes with a tiny model; the figures mean nothing
#   --short   the figures that the project holds itself to, in under 10 minutes: no kernels, fewer sizes
#   --build   an existing build with MNEME_BENCH=ON; default: build/release, made if need be
#   --out     where results go; default: build/bench-results
#   --shape   the model, by a name that mneme-make-model knows; default: mom-340m
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=false
short=false
build=
out=build/bench-results
shape=mom-340m
while (($# > 0)); do
  case $1 in
    --quick) quick=true ;;
    --short) short=true ;;
    --build | --out | --shape)
      if (($# < 2)); then
        echo "run_cpu.sh: $1 wants a value" >&2
        exit 2
      fi
      case $1 in
        --build) build=$2 ;;
        --out) out=$2 ;;
        --shape) shape=$2 ;;
      esac
      shift
      ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run_cpu.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
  shift
done

kernel_flags=()
engine_flags=()
streams=256
prompts=1024
if $quick; then
  shape=mom-tiny
  kernel_flags=(--op=pack --seconds=0.1)
  engine_flags=(--quick)
  streams=16
  prompts=32
elif $short; then
  engine_flags=(--rows 1,16 --prompts 512)
  prompts=512
fi

if [[ -z $build ]]; then
  tools/setup.sh --bench
  build=build/release
  cmake --preset release >/dev/null
  cmake --build "$build" -j "$(nproc)"
fi
mkdir -p "$out"
models=$(mktemp -d)
server_pid=
cleanup() {
  if [[ -n $server_pid ]]; then
    kill "$server_pid" 2>/dev/null || true
    wait "$server_pid" 2>/dev/null || true
  fi
  rm -rf "$models"
}
trap cleanup EXIT

# The host and the commit, so that a table can be judged later.
{
  date -u +'%Y-%m-%d %H:%M UTC'
  git describe --always --dirty 2>/dev/null || true
  uname -srm
  lscpu | grep -E '^(Model name|CPU\(s\)|L2 cache|L3 cache)'
  echo "of AVX2, AVX-512, AVX-512-BF16, AMX: $(grep -m1 '^flags' /proc/cpuinfo | tr ' ' '\n' |
    grep -xE 'avx2|avx512f|avx512_bf16|amx_bf16' | xargs || true)"
  free -g | sed -n 2p
  echo "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
} | tee "$out/host.txt"

echo "==== mneme-make-model --shape $shape"
"$build/bin/mneme-make-model" --shape "$shape" --seed 1 --out "$models/$shape"
shallow="$models/$shape-2-layers"
"$build/bin/mneme-make-model" --shape "$shape" --layers 2 --seed 1 --out "$shallow"

for dtype in f32 bf16; do
  if $short; then continue; fi
  echo "==== kernel_bench --compute-dtype=$dtype"
  "$build/bin/kernel_bench" --compute-dtype=$dtype ${kernel_flags[@]+"${kernel_flags[@]}"} |
    tee "$out/kernel_bench_$dtype.txt"
done

echo "==== engine_bench --model $shape"
"$build/bin/engine_bench" --model "$models/$shape" ${engine_flags[@]+"${engine_flags[@]}"} \
  --json "$out/engine_bench.json" | tee "$out/engine_bench.txt"

if [[ ! -x $build/bin/mneme-server || ! -x $build/bin/mneme ]]; then
  echo "==== over gRPC: not measured, $build/bin has no mneme-server or no mneme"
  exit 0
fi

echo "==== over gRPC: $streams streams at once, then $prompts requests with $streams open"
"$build/bin/mneme-server" --model "$shallow" --grpc-port 0 --http-port -1 --max-sessions "$streams" \
  --max-num-seqs "$streams" >"$out/server.txt" 2>&1 &
server_pid=$!
port=
for ((i = 0; i < 600; ++i)); do
  port=$(sed -nE 's/^listening on .*:([0-9]+)$/\1/p' "$out/server.txt" | head -n 1)
  [[ -n $port ]] && break
  kill -0 "$server_pid" 2>/dev/null || { cat "$out/server.txt" >&2; exit 1; }
  sleep 0.1
done
: "${port:?the server did not come up, see $out/server.txt}"
serve_bench() {
  local name=$1 requests=$2
  "$build/bin/mneme" bench --server "127.0.0.1:$port" --num-prompts "$requests" \
    --max-concurrency "$streams" --random-input-len 32 --random-output-len 64 \
    --random-range-ratio 0.5 --temperature 0.8 --seed 1 --num-warmups 2 \
    --metric-percentiles 50,99 --save-result --result-dir "$out" --result-filename "$name.json" |
    tee "$out/$name.txt"
}
serve_bench serve_bench_once "$streams"
serve_bench serve_bench_steady "$prompts"
kill -TERM "$server_pid"
wait "$server_pid" && echo "server: exit code 0" || echo "server: exit code $?"
server_pid=
echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)" | tee -a "$out/host.txt"
echo "==== results are in $out"
