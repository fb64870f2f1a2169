#!/usr/bin/env bash
# Fails if one of the files named is larger than 512 KB: git keeps every version of it for ever.
#
# usage: check_file_size.sh FILE...
set -euo pipefail
status=0
for file in "$@"; do
  if [[ -f $file ]] && (($(stat -c %s -- "$file") > 512 * 1024)); then
    echo "$file: $(stat -c %s -- "$file") bytes, the limit is $((512 * 1024))"
    status=1
  fi
done
exit $status
