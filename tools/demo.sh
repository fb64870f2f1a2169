#!/usr/bin/env bash
# From a bare Debian 12 to a running Mneme: installs what is missing, builds, starts a server with a
# small model, shows what sessions are, and stops the server. Re-running takes seconds.
#
# usage: tools/demo.sh [--bin DIR]
#   --bin DIR   use the programs in DIR instead of building them
#
# Exits with 0 only if every comparison that it prints holds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=
while (($#)); do
  case $1 in
    --bin) bin=${2:?--bin needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "demo.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
done

if [[ -t 1 ]]; then bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'; else bold='' dim='' plain=''; fi
step() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
note() { printf '%s%s%s\n' "$dim" "$1" "$plain"; }
fail() {
  printf '\nDIFFERENT: %s\n' "$1" >&2
  exit 1
}

if [[ -z $bin ]]; then
  step "Building (minutes the first time)"
  tools/setup.sh
  mkdir -p build
  cmake --preset release >build/release.configure.log || { cat build/release.configure.log; exit 1; }
  cmake --build --preset release --target mneme-server mneme mneme-make-model
  bin=build/release/bin
fi

demo=$(mktemp -d)
server=
clean_up() {
  local status=$?
  trap - EXIT INT TERM
  if [[ -n $server ]] && kill -0 "$server" 2>/dev/null; then
    kill -KILL "$server" && wait "$server" 2>/dev/null || true
  fi
  if ((status != 0)) && [[ -s $demo/server.log ]]; then
    printf '\nThe last lines of the server:\n' >&2
    tail -n 20 "$demo/server.log" >&2
  fi
  rm -rf "$demo"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step "A model with random weights"
note "It has never been trained, so what it says is noise. What it remembers is exact all the same."
"$bin/mneme-make-model" --shape tiny --vocab 560 --seed 1 --out "$demo/demo-model"
cp tests/golden/tokenizer_sp/bpe.model "$demo/demo-model/tokenizer.model"

step "A server on a free port"
"$bin/mneme-server" --model "$demo/demo-model" --grpc-port 0 --http-port 0 >"$demo/server.out" 2>"$demo/server.log" &
server=$!
until grep -q '^ready' "$demo/server.out"; do
  kill -0 "$server" 2>/dev/null || { echo "the server did not start" >&2; exit 1; }
  sleep 0.05
done
MNEME_SERVER=$(sed -n 's/^listening on //p' "$demo/server.out")
export MNEME_SERVER
"$bin/mneme" info

mneme() { "$bin/mneme" "$@"; }
options=(--max-tokens 12 --temperature 0 --ignore-eos)
# answer ARGUMENTS: a greedy answer as "token:log-probability" per token. A log-probability tells two
# memories apart even where both happen to choose the same token.
answer() {
  mneme generate "${options[@]}" --logprobs 0 --json "$@" >"$demo/answer" || return
  grep -o '"token_id":[0-9]*\|"logprob":[-0-9.e]*' "$demo/answer" | sed 's/.*://' | paste -d: - -
}
tokens_of() { cut -d: -f1 | paste -sd,; }
show() { printf '  %-38s %s\n' "$1" "$(tokens_of <<<"$2")"; }

step "A streamed generation"
mneme generate --max-tokens 48 --seed 7 --temperature 0.8 --ignore-eos "Once upon a time" |
  stdbuf -o0 tr -d '\000-\037\177'  # noise may contain escape sequences
echo

step "Two sessions do not mix"
note "Anna and Ben talk in turns. Then Anna's conversation is held again, alone. (Token ids, greedy.)"
answer --session anna "My name is Anna." >/dev/null
answer --session ben "Call me Ben, please." >/dev/null
anna=$(answer --session anna " What is my name?")
ben=$(answer --session ben " What is my name?")
answer --session alone "My name is Anna." >/dev/null
alone=$(answer --session alone " What is my name?")
show "Anna, with Ben in between:" "$anna"
show "Anna, alone:" "$alone"
show "Ben, asked the same:" "$ben"
[[ $anna == "$alone" ]] || fail "Anna's answer depends on Ben"
[[ $anna != "$ben" ]] || fail "Anna and Ben got the same answer, to the last bit"
note "Equal for Anna, log-probabilities included; different for Ben."

step "A session continues where it was"
note "Two calls, the second one sending only what is new, against the whole conversation at once."
first=$(answer --session carl "My name is Carl.")
second=$(answer --session carl " What is my name?")
whole=$(mneme tokenize "My name is Carl." | tr ' ' ,),$(tokens_of <<<"$first"),$(
  mneme tokenize --continuation " What is my name?" | tr ' ' ,)
at_once=$(answer --token-ids "$whole")
show "second call:" "$second"
show "everything at once:" "$at_once"
[[ $second == "$at_once" ]] || fail "a continued session and a fresh one"
note "Equal, to the last bit."

step "A fork remembers the same and goes its own way"
mneme session fork carl carl-fork >/dev/null
changed=$(answer --session carl-fork " I changed my mind.")
forked=$(answer --session carl " Thank you.")
again=$(answer --token-ids "$whole,$(tokens_of <<<"$second"),$(
  mneme tokenize --continuation " Thank you." | tr ' ' ,)")
show "the fork goes on:" "$changed"
show "the parent goes on:" "$forked"
show "the parent, had it never been forked:" "$again"
[[ $forked == "$again" ]] || fail "the parent noticed its fork"
mneme session list

step "SIGTERM"
kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
((status == 0)) || { echo "the server exited with $status, expected 0" >&2; exit 1; }
echo "The server drained and exited with 0. All comparisons hold."
