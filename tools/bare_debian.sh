#!/usr/bin/env bash
# Runs what the documents tell a newcomer to run where nothing is installed: in a bare Debian 12, made
# with debootstrap in a folder of its own, of the committed state of this clone. Needs root, debootstrap
# and Debian's packages; leaves nothing behind but what --keep keeps.
#
# usage: tools/bare_debian.sh [--demo] [--test] [--bench] [--package] [--mirror URL] [--base DIR] [--keep]
#   --demo      tools/demo.sh, timed
#   --test      tools/test.sh --quick
#   --bench     bench/run_cpu.sh --quick
#   --package   tools/package.sh; then, in a second bare system, the package is installed with apt, serves,
#               answers the command line and the Python client from its wheel, and is removed again
#   --mirror    where Debian comes from; default: http://deb.debian.org/debian
#   --base      a bare system that debootstrap made before, which is copied; default: a new one
#   --keep      leave the systems where they are, and say where
# Without any of the first four: all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

steps=()
mirror=http://deb.debian.org/debian
base=
keep=false
while (($#)); do
  case $1 in
    --demo | --test | --bench | --package) steps+=("${1#--}") ;;
    --mirror) mirror=${2:?--mirror needs a URL}; shift ;;
    --base) base=$(realpath "${2:?--base needs a folder}"); shift ;;
    --keep) keep=true ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "bare_debian.sh: unknown argument $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
if ((${#steps[@]} == 0)); then steps=(demo test bench package); fi
if ((EUID != 0)) || ! command -v debootstrap >/dev/null; then
  echo "bare_debian.sh: needs root, and debootstrap (apt-get install debootstrap)" >&2
  exit 1
fi

work=$(mktemp -d /var/tmp/mneme-bare.XXXXXX)
clean_up() {
  local status=$?
  trap - EXIT
  for root in "$work"/*/; do
    umount -q -l "$root/proc" "$root/dev" 2>/dev/null || true  # lazily: what runs inside may be ending
  done
  if $keep; then echo "kept: $work"; else rm -rf --one-file-system "$work"; fi
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# bare NAME: a system in $work/NAME.
bare() {
  local root=$work/$1
  if [[ -z $base ]]; then
    base=$work/base
    debootstrap --variant=minbase bookworm "$base" "$mirror" >"$work/debootstrap.log" || {
      tail -n 20 "$work/debootstrap.log"
      exit 1
    }
  fi
  cp -a "$base" "$root"
  # As this machine finds names and packages; services do not start inside.
  cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
  if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then  # a proxy's authority
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/authorities.crt"
    printf '[global]\ncert = /etc/authorities.crt\n' >"$root/etc/pip.conf"
  fi
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod 755 "$root/usr/sbin/policy-rc.d"
  mount -t proc proc "$root/proc"
  mount --bind /dev "$root/dev"
}

# inside NAME COMMAND: runs it there, in the clone if there is one.
inside() {
  local folder=/
  if [[ -d $work/$1/mneme ]]; then folder=/mneme; fi
  chroot "$work/$1" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "cd $folder; $2"
}

# Makes a newcomer's machine: git and a clone.
builder() {
  if [[ -d $work/builder ]]; then return; fi
  bare builder
  inside builder "apt-get -q update >/dev/null && apt-get -q -y install --no-install-recommends git ca-certificates >/dev/null"
  git clone -q --no-hardlinks . "$work/builder/mneme"
}

summary=()
timed() {
  printf '\n==== %s\n' "$1"
  local begin=$SECONDS
  "${@:2}"
  summary+=("$(printf '%-60s %5d s' "$1" $((SECONDS - begin)))")
}

try_package() {
  bare user
  mkdir "$work/user/packages"
  cp "$work"/builder/mneme/build/packages/* "$work/user/packages/"
  inside user "apt-get -q update >/dev/null"
  inside user "dpkg -l | awk '/^ii/ {print \$2}' | sort >/packages/before"
  timed "apt-get install mneme.deb" inside user "apt-get -q -y install --no-install-recommends /packages/mneme_*.deb"
  inside user "getent passwd mneme && test -f /lib/systemd/system/mneme-server.service && stat -c '%U:%G %a %n' /etc/mneme"
  timed "the installed server serves" inside user '
    MNEME_GRPC_PORT=0 MNEME_HTTP_PORT=0 mneme-server >/tmp/out 2>/tmp/log & server=$!
    for i in $(seq 100); do grep -q ^ready /tmp/out && break; sleep 0.1; done
    export MNEME_SERVER=$(sed -n "s/^listening on //p" /tmp/out)
    mneme info | head -n 2
    answer=$(printf "My name is Clara.\nWhat is my name?\n" | mneme chat --session clara --temperature 0)
    echo "$answer"; grep -q "Your name is Clara" <<<"$answer"
    kill -TERM $server; wait $server'
  timed "the wheel talks to it" inside user '
    apt-get -q -y install --no-install-recommends python3-venv >/dev/null
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip -q install /packages/mneme_client-*.whl
    MNEME_GRPC_PORT=0 MNEME_HTTP_PORT=-1 mneme-server >/tmp/out 2>/tmp/log & server=$!
    for i in $(seq 100); do grep -q ^ready /tmp/out && break; sleep 0.1; done
    /tmp/venv/bin/python - "$(sed -n "s/^listening on //p" /tmp/out)" <<PY
import sys
from mneme import Client
with Client(sys.argv[1]) as client:
    session = client.session("ben")
    session.chat("My name is Ben.", temperature=0)
    answer = session.chat("What is my name?", temperature=0).text
    print(answer)
    assert "Ben" in answer
PY
    kill -TERM $server; wait $server'
  timed "apt-get purge mneme" inside user "apt-get -q -y purge mneme && apt-get -q -y autoremove --purge"
  inside user '! getent passwd mneme; test ! -e /etc/mneme -a ! -e /usr/bin/mneme-server -a ! -e /usr/share/mneme
    find / -xdev -name "*mneme*" -not -path "/packages/*" -not -path "/proc/*" -not -path "/tmp/*" | tee /packages/left
    test ! -s /packages/left'
}

for step in "${steps[@]}"; do
  builder
  case $step in
    demo) timed "tools/demo.sh" inside builder tools/demo.sh ;;
    test) timed "tools/test.sh --quick" inside builder "tools/test.sh --quick" ;;
    bench) timed "bench/run_cpu.sh --quick" inside builder "bench/run_cpu.sh --quick" ;;
    package)
      timed "tools/package.sh" inside builder tools/package.sh
      try_package
      ;;
  esac
done
printf '\n==== All of it ran on a bare Debian\n'
printf '%s\n' "${summary[@]}"
