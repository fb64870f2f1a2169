#!/usr/bin/env bash
# From a bare Debian 12 to a running Mneme: installs what is missing, builds, starts a server with the
# small demo model, tells it facts, floods it with thousands of tokens, asks, forks, kills it and goes on.
# Needs no GPU. Re-running takes seconds.
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
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
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
  tools/setup.sh --build-only
  mkdir -p build
  cmake --preset release >build/release.configure.log || { cat build/release.configure.log; exit 1; }
  cmake --build --preset release --target mneme-server mneme
  bin=build/release/bin
fi

work=$(mktemp -d)
server=
clean_up() {
  local status=$?
  trap - EXIT INT TERM
  if [[ -n $server ]] && kill -0 "$server" 2>/dev/null; then
    kill -KILL "$server" && wait "$server" 2>/dev/null || true
  fi
  if ((status != 0)) && [[ -s $work/server.log ]]; then
    printf '\nThe last lines of the server:\n' >&2
    tail -n 20 "$work/server.log" >&2
  fi
  rm -rf "$work"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

SECONDS=0
step "A server, started without arguments: it serves the demo model"
# Your own settings stay out of it.
for variable in "${!MNEME_@}"; do unset "$variable"; done
start_server() {
  : >"$work/server.out"
  MNEME_GRPC_PORT=0 MNEME_HTTP_PORT=0 "$bin/mneme-server" "$@" >"$work/server.out" 2>"$work/server.log" &
  server=$!
  until grep -q '^ready' "$work/server.out"; do
    kill -0 "$server" 2>/dev/null || { echo "the server did not start" >&2; exit 1; }
    sleep 0.05
  done
  MNEME_SERVER=$(sed -n 's/^listening on //p' "$work/server.out")
  export MNEME_SERVER
}
# stop_server: it has to drain and to exit with 0.
stop_server() {
  kill -TERM "$server"
  local status=0
  wait "$server" || status=$?
  server=
  ((status == 0)) || { echo "the server exited with $status, expected 0" >&2; exit 1; }
}
start_server
mneme() { "$bin/mneme" "$@"; }
mneme info | sed -n 1,4p

# turns SESSION: says the lines of standard input. What mneme chat says besides answers, where the
# session stands, is shown only if it fails.
turns() {
  mneme chat --session "$1" --temperature 0 --max-tokens 48 2>"$work/chat.err" || { cat "$work/chat.err" >&2; return 1; }
}
# ask SESSION TEXT: one turn of a chat; the answer is in $answer.
ask() {
  printf '  %s> %s%s\n' "$bold" "$2" "$plain"
  answer=$(turns "$1" <<<"$2")
  printf '  %s\n' "$answer"
}
# says TEXT: the last answer has to contain it.
says() { [[ $answer == *"$1"* ]] || fail "the answer, where \"$1\" was expected"; }
# field NAME SESSION: "position" or "state_bytes" of a session, a number.
field() { mneme session get "$2" --json | grep -o "\"$1\":\"\?[0-9]*" | grep -o '[0-9]*$'; }
size() { printf '%s  [%s: %s tokens in %s bytes]%s\n' "$dim" "$1" "$(field position "$1")" "$(field state_bytes "$1")" "$plain"; }

step "Some facts"
note "Each line is one call of mneme chat. It sends this line only: the session has the rest."
ask clara "My name is Clara."
ask clara "Please remember that my code is 7281."
ask clara "Anna's city is Rome."
ask clara "The lantern's shelf is 42."
size clara
bytes=$(field state_bytes clara) before=$(field position clara)

step "A flood"
note "$(wc -l <demo/flood.txt) turns about other people and things. The first and the last:"
turns clara <demo/flood.txt >"$work/flood"
turn() { printf '  %s> %s%s\n  %s\n' "$bold" "$(short "$1")" "$plain" "$2"; }
short() { if ((${#1} > 90)); then printf '%.84s [...]' "$1"; else printf '%s' "$1"; fi; }
turn "$(head -n 1 demo/flood.txt)" "$(head -n 1 "$work/flood")"
turn "$(tail -n 1 demo/flood.txt)" "$(tail -n 1 "$work/flood")"
size clara
(($(field position clara) - before > 3000)) || fail "the flood, which was to be thousands of tokens"
[[ $(field state_bytes clara) == "$bytes" ]] || fail "the size of the memory"
note "$(($(field position clara) / before)) times as many tokens, and not a byte more."

step "Does it still know?"
ask clara "What is my name?"
says Clara
ask clara "What is my code?"
says 7281
ask clara "What is Anna's city?"
says Rome
ask clara "What is the lantern's shelf?"
says 42

step "A fork: the same past, two futures"
mneme session fork clara clara-2 >/dev/null
note "In the fork:"
ask clara-2 "My code has changed: it is now 1905."
ask clara-2 "What is my code?"
says 1905
ask clara-2 "What is Anna's city?"
says Rome
note "In the session it was made of:"
ask clara "What is my code?"
says 7281
size clara-2
[[ $(field state_bytes clara-2) == "$bytes" ]] || fail "the size of the fork"

# exactly ARGUMENTS: a greedy answer as "token:log-probability" per token. The memory decides about
# all of these digits, where words might happen to be the same.
exactly() {
  mneme generate --max-tokens 12 --temperature 0 --ignore-eos --logprobs 0 --json "$@" >"$work/json" || return
  grep -o '"token_id":[0-9]*\|"logprob":[-0-9.e]*' "$work/json" | sed 's/.*://' | paste -d: - -
}
ids_of() { mneme tokenize "$@" | tr ' ' ,; }
tokens_of() { cut -d: -f1 | paste -sd,; }
show() { printf '  %-38s %s\n' "$1" "$(cut -d: -f2 <<<"$2" | cut -c1-10 | head -n 5 | paste -sd ' ')"; }
told=$'User: My name is Clara.\nAssistant:' asked=$'\nUser: What is my name?\nAssistant:'

step "A session continues where it was, to the last bit"
note "Log-probabilities of an answer: two calls, the second one sending only what is new, or all at once."
first=$(exactly --session two-calls "$told")
second=$(exactly --session two-calls "$asked")
at_once=$(exactly --token-ids "$(ids_of "$told"),$(tokens_of <<<"$first"),$(ids_of --continuation "$asked")")
show "second call:" "$second"
show "all at once:" "$at_once"
[[ $second == "$at_once" ]] || fail "a continued session and a fresh one"

step "Two sessions do not mix"
exactly --session clara-3 "$told" >/dev/null
exactly --session ben "${told/Clara/Ben}" >/dev/null
clara=$(exactly --session clara-3 "$asked")
ben=$(exactly --session ben "$asked")
show "Clara, alone:" "$second"
show "Clara, with Ben in between:" "$clara"
show "Ben, asked the same:" "$ben"
[[ $clara == "$second" ]] || fail "Clara's answer depends on Ben"
[[ $clara != "$ben" ]] || fail "Clara and Ben got the same answer, to the last bit"

step "A session outlives kill -9"
stop_server
start_server --session-dir "$work/sessions"
exactly --session clara-4 "$told" >/dev/null
kill -KILL "$server" && wait "$server" 2>/dev/null || true
note "The server was killed. Another one, on the same folder:"
start_server --session-dir "$work/sessions"
after=$(exactly --session clara-4 "$asked")
show "Clara, behind kill -9:" "$after"
[[ $after == "$second" ]] || fail "a session that was stored and one that was not"

step "The end"
stop_server
echo "The servers drained and exited with 0. All comparisons hold. That took $SECONDS seconds."
note "Your turn: $bin/mneme-server in one terminal, $bin/mneme chat --session anna in another."
