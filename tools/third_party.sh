#!/usr/bin/env bash
# Lists what programs are made of beside our own code, by Debian package: for the image, which installs the
# packages of the libraries, and tells users whose work is in it under which licence.
#
# usage: tools/third_party.sh packages FILE...
#          the packages that own the shared libraries which these programs and libraries load
#        tools/third_party.sh licences BUILD OUT FILE...
#          writes OUT/THIRD_PARTY, a line for each source that those packages were built from, or
#          whose headers the ninja build in BUILD compiled in, and OUT/<source>.copyright
set -euo pipefail

if (($# < 2)) || [[ $1 == -h || $1 == --help ]]; then
  sed -n '2,9s/^# \{0,1\}//p' "$0"
  exit 2
fi

# owners: packages of the files named on standard input. Files that no package has are left out.
owners() {
  local paths
  paths=$(cat)
  # A package knows a file by its own name, without the links that lead there: CUDA's folder is one. And
  # where /lib is a link to /usr/lib, dpkg knows the file by one of the two names.
  { echo "$paths"; xargs -r realpath -e -- <<<"$paths"; } |
    sed -E 'p; s,^/usr/(lib),/\1,; t; s,^/(lib),/usr/\1,' | sort -u |
    xargs -r dpkg-query -S 2>/dev/null | sed -E 's/(:[a-z0-9]+)?: .*//; s/, /\n/g' | sort -u || true
}

library_packages() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | owners
}

# The C library's and the compiler's own headers are part of no program.
header_packages() {
  ninja -C "$1" -t deps | awk '$1 ~ /^\/usr\// { print $1 }' | sort -u | owners |
    grep -vE '^(linux-libc-dev|libc6-dev|libcrypt-dev|libstdc\+\+-.*-dev|libgcc-.*-dev|cpp-.*|gcc-.*)$' || true
}

# copyright_of PACKAGE SOURCE: the file. Packages of one source may share it through a link, which slim
# images lack.
copyright_of() {
  local package others
  others=$(dpkg-query -W -f='${source:Package} ${Package}\n' |
    awk -v source="$2" '$1 == source { print $2 }')
  for package in "$1" $others; do
    if [[ -s /usr/share/doc/$package/copyright ]]; then
      echo "/usr/share/doc/$package/copyright"
      return
    fi
  done
  echo "third_party.sh: no copyright file of $1" >&2
  return 1
}

case $1 in
  packages)
    library_packages "${@:2}"
    ;;
  licences)
    build=$2 out=$3
    mkdir -p "$out"
    # One entry for each source: its packages, built of the same files, share one text.
    declare -A packages versions
    for package in $({ library_packages "${@:4}"; header_packages "$build"; } | sort -u); do
      read -r source version < <(
        dpkg-query -W -f='${source:Package} ${source:Version}\n' "$package" | head -n 1)
      packages[$source]+=" $package"
      versions[$source]=$version
    done
    {
      echo "# source version (packages): licences that its copyright file names, for whatever part of it"
      for source in $(printf '%s\n' "${!packages[@]}" | sort); do
        read -r first _ <<<"${packages[$source]}"
        text=$(copyright_of "$first" "$source")
        cp -L "$text" "$out/$source.copyright"
        # Machine-readable files name licences in fields of their own.
        names=$(sed -nE 's/^License: *([^ ].*)/\1/p' "$out/$source.copyright" | sort -u | paste -sd ';')
        echo "$source ${versions[$source]} (${packages[$source]# }): ${names:-see $source.copyright}"
      done
    } | tee "$out/THIRD_PARTY"
    ;;
  *)
    echo "third_party.sh: unknown command $1; see --help" >&2
    exit 2
    ;;
esac
