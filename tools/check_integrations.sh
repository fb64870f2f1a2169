#!/usr/bin/env bash
# Tries the libraries of docs/integrations.md against a server with the demo model, each in an environment of its
# own, from a package index. Takes gigabytes and many minutes, so no test runs it.
#
# usage: tools/check_integrations.sh [NAME...]    openai, langchain, litellm, llamaindex, lm-eval, open-webui; all
#
#   BIN_DIR        folder of mneme-server (build/release/bin)
#   ENVIRONMENTS   where the environments are made, and kept (build/integrations)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=${BIN_DIR:-build/release/bin}
environments=${ENVIRONMENTS:-build/integrations}
names=("$@")
((${#names[@]})) || names=(openai langchain litellm llamaindex lm-eval open-webui)

declare -A packages=(
  [openai]="openai"
  [langchain]="langchain-openai"
  [litellm]="litellm"
  [llamaindex]="llama-index-core llama-index-llms-openai-like"
  [lm-eval]="lm-eval[api] transformers sentencepiece"
  [open-webui]="open-webui"
)
declare -A scripts=(
  [openai]=openai_chat.py
  [langchain]=langchain_chat.py
  [litellm]=litellm_chat.py
  [llamaindex]=llamaindex_chat.py
  [lm-eval]=lm_eval_perplexity.py
  [open-webui]=open_webui_chat.py
)

mkdir -p "$environments"
log=$environments/server.log
"$bin/mneme-server" --model demo/model --grpc-port 0 --http-port 0 >"$log" 2>&1 &
server=$!
trap 'kill "$server"; wait "$server" || true' EXIT
for _ in {1..300}; do
  url=$(sed -n 's|.*listening api=http address=|http://|p' "$log")
  [[ -n $url ]] && curl -sf "$url/health" >/dev/null && break
  sleep 0.1
done

failed=()
for name in "${names[@]}"; do
  [[ -n ${scripts[$name]:-} ]] || { echo "no such check: $name" >&2; exit 2; }
  environment=$environments/$name
  if [[ ! -x $environment/bin/python ]]; then
    python3 -m venv "$environment"
    read -ra wanted <<<"${packages[$name]}"
    "$environment/bin/pip" install --quiet --disable-pip-version-check "${wanted[@]}"
  fi
  echo "== $name"
  read -ra wanted <<<"${packages[$name]}"
  "$environment/bin/pip" list --disable-pip-version-check --format freeze |
    grep -iE "^($(IFS='|'; echo "${wanted[*]%%\[*}" | tr '-' '.'))==" || true
  # Nothing is fetched from a hub: models, data sets and prices are either here or not needed.
  HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True \
    "$environment/bin/python" "tests/integrations/${scripts[$name]}" "$url" demo/model || failed+=("$name")
done
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
