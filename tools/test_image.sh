#!/usr/bin/env bash
# Builds the image from the Dockerfile and tests it, without a Docker daemon: buildah builds and runs it,
# on a base that debootstrap makes. Needs root and the Debian packages buildah and debootstrap. Compiles
# the whole project the first time, and what changed later on.
#
# usage: tools/test_image.sh [--jobs N]
#   --jobs N   compilers at once; default: as many as there are processors
#
# DEBIAN_MIRROR names another mirror than Debian's own. Leaves the image localhost/mneme:test behind;
# buildah rmi removes it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=$(nproc)
while (($#)); do
  case $1 in
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test_image.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
done
for program in buildah debootstrap curl python3; do
  command -v "$program" >/dev/null || { echo "test_image.sh: $program is missing" >&2; exit 1; }
done
if ((EUID != 0)); then
  echo "test_image.sh: has to be root, for debootstrap" >&2
  exit 1
fi

export BUILDAH_ISOLATION=chroot  # Needs no privileges that a container lacks.
base=localhost/debian:bookworm-slim
image=localhost/mneme:test
work=$(mktemp -d)
container=
server=
clean_up() {
  local status=$?
  trap - EXIT
  if [[ -n $server ]]; then kill -KILL "$server" 2>/dev/null || true; fi
  if ((status != 0)); then
    for log in "$work"/*.log; do
      if [[ -s $log ]]; then printf '\n%s:\n' "${log##*/}"; tail -n 30 "$log"; fi
    done
  fi
  if [[ -n $container ]]; then buildah rm "$container" >/dev/null || true; fi
  rm -rf "$work"
  exit "$status"
}
trap clean_up EXIT

step() { printf '\n== %s\n' "$1"; }
fail() { printf 'FAILED: %s\n' "$1"; exit 1; }
# expect WHAT ACTUAL WANTED: WANTED is a pattern.
expect() {
  # shellcheck disable=SC2053  # a pattern on purpose
  [[ $2 == $3 ]] || fail "$1: $2, expected $3"
  printf 'ok      %s\n' "$1"
}

make_base() {
  local mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian} root=$work/root
  debootstrap --variant=minbase bookworm "$root" "$mirror" >"$work/debootstrap.log"
  # The slim images on Docker's hub leave this out, too.
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{man,info,locale}/*
  find "$root/usr/share/doc" ! -type d ! -name copyright -delete
  local from mounted
  from=$(buildah from scratch)
  mounted=$(buildah mount "$from")
  cp -a "$root/." "$mounted"
  buildah umount "$from" >/dev/null
  buildah commit --quiet "$from" "$base" >/dev/null
  buildah rm "$from" >/dev/null
  rm -rf "$root"
}

# config FIELD...: one value of the image's configuration, lists as words.
config() {
  buildah inspect --type image "$image" | python3 -c '
import json, sys
value = json.load(sys.stdin)["Docker"]["config"]
for name in sys.argv[1:]:
    value = value[name]
print(" ".join(value) if isinstance(value, (list, dict)) else value)' "$@"
}

# in_image COMMAND...: as the image's user, with its environment, and on the host's network.
in_image() {
  buildah run --volume "$work/models:/models" --volume "$work/keys:/run/keys" \
    --env MNEME_GRPC_PORT="$grpc_port" --env MNEME_HTTP_PORT="$http_port" \
    --env MNEME_SERVER="127.0.0.1:$grpc_port" ${key:+--env "MNEME_API_KEY=$key"} "${environment[@]}" \
    "$container" -- "$@"
}
# refused CODE PATTERN ARGUMENTS...: the entrypoint ends with this code and one such line.
refused() {
  local code=$1 pattern=$2 status=0 said
  shift 2
  # shellcheck disable=SC2086  # the entrypoint is words
  said=$(in_image $entrypoint "$@" 2>&1 >/dev/null) || status=$?
  said=$(grep '^mneme-server:' <<<"$said")  # buildah has words of its own
  expect "mneme-server $*: exit code" "$status" "$code"
  expect "mneme-server $*: message" "$(wc -l <<<"$said") line: $said" "1 line: *$pattern*"
}
# start ARGUMENTS...: a server, until it is ready. Sets $runner, its job, and $server, its process.
start() {
  : >"$work/server.log"
  in_image "$@" >"$work/server.log" 2>&1 &
  runner=$!
  for ((tries = 0; tries < 300; ++tries)); do
    if grep -q '^ready' "$work/server.log"; then break; fi
    kill -0 "$runner" 2>/dev/null || fail "the server ended"
    sleep 0.2
  done
  # The server is the last of the processes that buildah stacks.
  server=$runner
  while child=$(pgrep -P "$server"); do server=$child; done
}
# terminate: the server gets the signal; $status is the exit code of its job.
terminate() {
  kill -TERM "$server"
  server=
  status=0
  wait "$runner" || status=$?
}
fetch() { curl --silent --show-error --max-time 60 "$@"; }
status_of() { fetch --output /dev/null --write-out '%{http_code}' "$@"; }
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

step "Base"
if ! buildah inspect --type image "$base" >/dev/null 2>&1; then make_base; fi

step "Build"
buildah bud --layers --pull-never --format docker --build-arg "JOBS=$jobs" \
  --build-arg BUILD_IMAGE="$base" --build-arg RUNTIME_IMAGE="$base" --tag "$image" . >"$work/build.log" 2>&1

step "Configuration"
expect "user" "$(config User)" "65532:65532"
expect "signal to stop" "$(config StopSignal)" SIGTERM
expect "volume" "$(config Volumes)" /models
entrypoint=$(config Entrypoint)
expect "entrypoint" "$entrypoint" mneme-server
health_check=$(config Healthcheck Test)
expect "health check" "$health_check" "CMD mneme health *"
health_check=${health_check#CMD }
expect "licence" "$(config Labels org.opencontainers.image.licenses)" Apache-2.0

container=$(buildah from --pull-never "$image")
files=$(buildah mount "$container")
third_party=$files/usr/local/share/doc/mneme/third_party
names=$(tr "() " "\n" <"$third_party/THIRD_PARTY")
while read -r package; do
  grep -qxF "$package" <<<"$names" || fail "no licence of $package"
done <"$files/usr/local/share/doc/mneme/packages"
while read -r source _; do
  [[ -s $third_party/$source.copyright ]] || fail "no copyright of $source"
done < <(grep -v '^#' "$third_party/THIRD_PARTY")
echo "ok      licences of $(wc -l <"$files/usr/local/share/doc/mneme/packages") packages"

step "A model and a key, made in the image"
grpc_port=$(free_port)
http_port=$(free_port)
metrics_port=$(free_port)
environment=()
mkdir "$work/models" "$work/keys"
chmod 755 "$work"
chown 65532:65532 "$work/models"
in_image mneme-make-model --shape tiny --vocab 560 --seed 1 --out /models/demo >/dev/null
cp tests/golden/tokenizer_sp/bpe.model "$work/models/demo/tokenizer.model"
in_image mneme-server --new-api-key alice >"$work/new_key"
new_key=$(head -n 1 "$work/new_key")
tail -n 1 "$work/new_key" >"$work/keys/api_keys"
expect "owner of the model" "$(stat -c %u "$work/models/demo/config.json")" 65532

step "The demo model, of which it takes no more than a host"
# shellcheck disable=SC2086
start $entrypoint --host 127.0.0.1
answer=$(fetch -H 'Content-Type: application/json' "http://127.0.0.1:$http_port/v1/completions" -d '{
  "model": "mneme-demo", "temperature": 0, "prompt":
  "User: My name is Anna.\nAssistant: Noted. Your name is Anna.</s>\nUser: What is my name?\nAssistant:"}')
expect "what it remembers" "$answer" '*"text":" Your name is Anna."*'
terminate
expect "exit code" "$status" 0

step "What is wrong is said in a line"
refused 2 "--api-key-file"
refused 2 "--model is missing" --host 127.0.0.1 --model=
refused 2 "unknown flag --modle" --modle demo
refused 3 "/models/none" --model /models/none --api-key-file /run/keys/api_keys
status=0
# shellcheck disable=SC2086
in_image $health_check >/dev/null 2>&1 || status=$?
expect "health without a server" "$status" 3

step "Start"
environment=(--env MNEME_MODEL=/models/demo --env MNEME_API_KEY_FILE=/run/keys/api_keys
  --env MNEME_METRICS_PORT="$metrics_port")
# shellcheck disable=SC2086
start $entrypoint
expect "process" "$(cat "/proc/$server/comm")" mneme-server
expect "user and group" "$(awk '/^[UG]id:/ { printf "%s ", $2 }' "/proc/$server/status")" "65532 65532 "
touch "$work/started"
# shellcheck disable=SC2086
in_image $health_check >/dev/null
echo "ok      health check"

step "Requests"
url=http://127.0.0.1:$http_port
bearer="Authorization: Bearer $new_key"
key=wrong
status=0
in_image mneme generate --max-tokens 4 Hello >/dev/null 2>&1 || status=$?
expect "gRPC with a wrong key" "$status" 7
key=$new_key
expect "gRPC" "$(in_image mneme generate --session anna --max-tokens 8 --ignore-eos 'My name is Anna.' 2>&1)" "?*"
expect "session" "$(in_image mneme session list)" "*anna*"
expect "HTTP without a key" "$(status_of "$url/v1/models")" 401
expect "models" "$(fetch -H "$bearer" "$url/v1/models")" '*"demo"*'
expect "completion" "$(fetch -H "$bearer" -H 'Content-Type: application/json' "$url/v1/completions" \
  -d '{"model": "demo", "prompt": "Hello", "max_tokens": 8, "ignore_eos": true}')" '*"completion_tokens":8*'
expect "/health" "$(status_of "$url/health")" 200
expect "metrics" "$(fetch "http://127.0.0.1:$metrics_port/metrics")" "*mneme_ready 1*"
# As on a root file system that is read-only.
expect "files written" "$(find "$files" -xdev -type f -newer "$work/started" | head -n 3)" ""

step "SIGTERM while a request runs"
fetch -H "$bearer" -H 'Content-Type: application/json' "$url/v1/completions" -d '{"model": "demo",
  "prompt": "Hello", "max_tokens": 20000, "ignore_eos": true}' >"$work/last.json" &
client=$!
for ((tries = 0; tries < 100; ++tries)); do
  if fetch "http://127.0.0.1:$metrics_port/metrics" | grep -q '^mneme_num_requests_running{.*} 1'; then break; fi
done
kill -TERM "$server"
server=
wait "$client"
expect "request" "$(cat "$work/last.json")" '*"completion_tokens":20000*'
status=0
wait "$runner" || status=$?
expect "exit code" "$status" 0
grep -q 'draining .*running=1' "$work/server.log" || fail "the request was over before the signal"
expect "log" "$(cat "$work/server.log")" "*draining*drained*"

step "Size"
for name in "$base" "$image"; do
  buildah images --noheading --format '{{.Name}}:{{.Tag}} {{.Size}}' "$name"
done
echo "The image works"
