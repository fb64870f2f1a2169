#!/usr/bin/env bash
# Measures on a GPU everything that a matrix memory's rule has marks for (bench/README.md): its step and
# its chunks, each three times in turns with flash-linear-attention's, then decoding and prompts of its
# 340M-class model through the engine, beside flash-linear-attention's model. join_rules.py makes tables.
#
# Each part is a file in OUT/RULE, and a part that is there is not measured again: what was cut off
# goes on with the same command. The GPU should have nothing else to do.
#
# usage: bench/run_rule.sh RULE [--build DIR] [--out DIR] [--python PROGRAM] [--seconds N]
#   RULE       linear_attn, retnet, gla, delta_net, kda, hgrn2 or gsa; or mom_linear_attn, mom_gla or
#              mom_gsa, which flash-linear-attention lacks: the step of 3 of 5 memories, and the model
#   --build    a build with MNEME_CUDA=ON, or a bundle (tools/gpu_bundle.sh); default: the bundle that
#              this script is in, else build/cuda
#   --out      where results go; default: rule-bench-results here
#   --python   has torch with CUDA and flash-linear-attention; default: python3. Without them only our
#              side is measured, and the other one when they are there.
#   --seconds  ends after these, with status 3 and what there is by then; default: 465
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

rule=
build=
out=rule-bench-results
python=python3
seconds=465
while (($# > 0)); do
  case $1 in
    --build | --out | --python | --seconds)
      if (($# < 2)); then
        echo "run_rule.sh: $1 wants a value" >&2
        exit 2
      fi
      case $1 in
        --build) build=$2 ;;
        --out) out=$2 ;;
        --python) python=$2 ;;
        --seconds) seconds=$2 ;;
      esac
      shift
      ;;
    -h | --help) sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 0 ;;
    linear_attn | retnet | gla | delta_net | kda | hgrn2 | gsa) rule=$1 ;;
    mom_linear_attn | mom_gla | mom_gsa) rule=$1 ;;
    *) echo "run_rule.sh: $1: no rule or argument; see --help" >&2; exit 2 ;;
  esac
  shift
done
if [[ -z $rule ]]; then
  echo "run_rule.sh: RULE is missing; see --help" >&2
  exit 2
fi
if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "run_rule.sh: --seconds $seconds: expected a number above 0" >&2
  exit 2
fi
if [[ -z $build && -x $here/../bin/gpu_bench ]]; then
  build=$here/..
elif [[ -z $build ]]; then
  build=$here/../build/cuda
fi
for program in cuda_matrix_memory_bench cuda_matrix_chunk_bench gpu_bench mneme-make-model; do
  if [[ ! -x $build/bin/$program ]]; then
    echo "run_rule.sh: $build/bin/$program is missing: expected a build with MNEME_CUDA=ON, or a bundle" >&2
    exit 2
  fi
done
export LD_LIBRARY_PATH=$build/lib:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

out=$out/$rule
mkdir -p "$out"
shape=${rule//_/-}-340m
chunk_rules=("$rule")
if [[ $rule == gsa ]]; then chunk_rules=(gsa_keys gsa_values); fi

# Files that go on from each other come from one machine and one version.
version=$(cat "$build/version.txt" 2>/dev/null || git -C "$here" describe --always --dirty 2>/dev/null ||
  echo "unknown version")
host="$version, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)"
if [[ -f $out/host.txt && $(<"$out/host.txt") != "$host" ]]; then
  echo "run_rule.sh: $out has results of \"$(<"$out/host.txt")\", and this is \"$host\": give another --out" >&2
  exit 2
fi
echo "$host" >"$out/host.txt"

end=$((SECONDS + seconds))
failed=()
late=()

# part FILE COMMAND..: runs the command, which writes to FILE.part, unless FILE is there. FILE.part stays
# where it fails, for commands that go on from it.
part() {
  local file=$out/$1 left=$((end - SECONDS)) status=0
  shift
  if [[ -f $file ]]; then return; fi
  if ((left <= 0)); then
    late+=("${file##*/}")
    return
  fi
  echo "==== $rule: ${file##*/}"
  timeout "$left" "$@" || status=$?
  if ((status == 0)); then
    mv "$file.part" "$file"
  elif ((status == 124)); then
    late+=("${file##*/}")
  else
    failed+=("${file##*/}")
  fi
}

fla=
if [[ $rule == mom_* ]]; then
  echo "==== fla: has no such rule"
elif "$python" -c 'import torch, fla; assert torch.cuda.is_available()' 2>"$out/fla_missing.txt"; then
  fla=yes
  rm "$out/fla_missing.txt"
else
  echo "==== fla: not measured: $(tail -n 1 "$out/fla_missing.txt")"
fi

for run in 1 2 3; do
  part "steps.$run.json" "$build/bin/cuda_matrix_memory_bench" --rules "$rule" \
    --json "$out/steps.$run.json.part"
  if [[ -n $fla ]]; then
    part "fla_steps.$run.json" "$python" "$here/fla_matrix_rules.py" --rules "$rule" \
      --json "$out/fla_steps.$run.json.part"
  fi
done
part engine.json "$build/bin/gpu_bench" --shapes "$shape" --state-dtypes f32 --rows 1,32,256 \
  --sections decode,prefill --json "$out/engine.json.part"
# Tuned by the first, whose choices Triton's cache keeps for the others.
for run in 1 2 3; do
  if [[ $rule == mom_* ]]; then break; fi  # the same chunks, of more segments
  part "chunks.$run.txt" bash -o pipefail -c '"$0" --time "${@:2}" | tee "$1"' \
    "$build/bin/cuda_matrix_chunk_bench" "$out/chunks.$run.txt.part" "${chunk_rules[@]}"
  if [[ -n $fla ]]; then
    part "fla_chunks.$run.json" "$python" "$here/fla_matrix_chunks.py" "$rule" \
      --seconds "$seconds" --json "$out/fla_chunks.$run.json.part"
  fi
done
if [[ -n $fla && ! -f $out/fla_forward.json ]]; then
  model=$(mktemp -d)
  trap 'rm -rf "$model"' EXIT
  "$build/bin/mneme-make-model" --shape "$shape" --seed 1 --out "$model/$shape" >/dev/null
  part fla_forward.json "$python" "$here/fla_forward.py" "$model/$shape" \
    --json "$out/fla_forward.json.part"
fi

if ((${#failed[@]} > 0)); then
  echo "run_rule.sh: failed: ${failed[*]}" >&2
  exit 1
fi
if ((${#late[@]} > 0)); then
  echo "run_rule.sh: not measured in $seconds s: ${late[*]}; the same command goes on with them" >&2
  exit 3
fi
