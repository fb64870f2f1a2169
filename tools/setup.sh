#!/usr/bin/env bash
# Installs what building and testing Mneme needs, on Debian 12 and its relatives. Does nothing, in well
# under a second, when everything is there.
#
# usage: tools/setup.sh [--build-only] [--bench] [--package] [--print]
#   --build-only   only what building the programs needs, as images are built with: nothing for tests
#   --bench        also oneDNN, which the benchmarks compare with
#   --package      also what tools/package.sh makes packages with
#   --print        only prints the package names
set -euo pipefail

packages=(
  build-essential cmake ninja-build lld pkg-config
  libabsl-dev libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler
  libssl-dev libsentencepiece-dev nlohmann-json3-dev libboost-dev prometheus-cpp-dev
  libsqlite3-dev libzstd-dev
  libpng-dev zlib1g-dev
)
development=(
  ccache git ca-certificates openssl
  libgtest-dev libgmock-dev clang-format
  python3 python3-venv python3-dev
)
print=false
for argument in "$@"; do
  case $argument in
    --build-only) development=() ;;
    --bench) packages+=(libdnnl-dev ocl-icd-opencl-dev) ;;  # whose CMake file asks for OpenCL
    --package) packages+=(file dpkg-dev python3 python3-venv) ;;  # CPack asks `file` what is a program
    --print) print=true ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown argument $argument; see --help" >&2; exit 2 ;;
  esac
done
packages+=(${development[@]+"${development[@]}"})
if $print; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup.sh: this system has no apt. Install the equivalents of these Debian packages:" >&2
  printf '  %s\n' "${packages[@]}" >&2
  exit 1
fi

# Names of the packages that are not installed. dpkg-query fails when it does not know one of them.
missing=()
installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
for package in "${packages[@]}"; do
  grep -qxF "$package installed" <<<"$installed" || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup.sh: needs root or sudo to install: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 \
    -o DPkg::Lock::Timeout=300 "$@"
}

echo "Installing ${#missing[@]} packages: ${missing[*]}"
apt_get update
apt_get install -y --no-install-recommends "${missing[@]}"
