#!/usr/bin/env bash
# Copies the folder of a server's sessions while the server runs. The copy is what the folder was at one
# moment, as a power loss would have left it, and has every snapshot that its catalogue names.
#
# usage: tools/backup_sessions.sh SESSION_DIR BACKUP_DIR
#   BACKUP_DIR   must not exist yet. Where it is on the same file system, snapshots are hard links: they
#                take no room until the server removes its own, and nothing ever writes to them
#
# To restore: copy BACKUP_DIR to where a server that does not run will look for its sessions.
#
# Needs sqlite3. Exit code 1: the folder changed too fast, or is no folder of sessions.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
if (($# != 2)); then echo "usage: backup_sessions.sh SESSION_DIR BACKUP_DIR" >&2; exit 2; fi
from=$1
to=$2
if [[ -e $to ]]; then echo "backup_sessions.sh: $to exists" >&2; exit 2; fi
umask 077
mkdir -p "$to/slabs"

# Snapshots are written under another name and never changed; new ones only.
copy_snapshots() {
  local file name
  for file in "$from"/slabs/*.slab; do
    name=${file##*/}
    [[ -e $to/slabs/$name ]] && continue
    ln "$file" "$to/slabs/$name" 2>/dev/null || cp -p "$file" "$to/slabs/$name" 2>/dev/null || [[ ! -e $file ]]
  done
}

# The WAL's header is another one after each time that it began anew, or the file is empty; `commits`
# is another one after each commit. The server writes to the database what the WAL still has.
state_of_wal() {
  if [[ -s $1-wal ]]; then head -c 32 "$1-wal" | od -An -tx1; else od -An -tx1 "$from/commits" 2>/dev/null; fi
}

# The one that counts, but for pages that the WAL has, and then the WAL; false where it began anew
# meanwhile, as then neither is a state.
copy_catalogue() {
  local database before
  rm -f "$to"/catalogue.* "$to/commits"
  database=$(ls "$from"/catalogue.*.db | sort -V | tail -n 1)
  before=$(state_of_wal "$database")
  cp -p "$from/commits" "$to/commits" 2>/dev/null || true  # before what it counts
  cp -p "$database" "$to/" || return 1
  if [[ -e $database-wal ]]; then cp -p "$database-wal" "$to/" || return 1; fi
  [[ -e $database && $before == "$(state_of_wal "$database")" ]] || return 1
  copied=$to/${database##*/}
}

# Reads the copy as a server would, which moves its WAL into it. False where it names a snapshot that
# the server removed before it was copied.
is_whole() {
  local name
  [[ $(sqlite3 "$copied" 'PRAGMA integrity_check;') == ok ]] || return 1
  while read -r name; do
    [[ -e $to/slabs/$name ]] || return 1
  done < <(sqlite3 "$copied" "SELECT DISTINCT lower(hex(key)) || '.slab' FROM rows WHERE kind = 3;")
}

for _ in $(seq 100); do
  copy_snapshots
  copy_catalogue || continue
  copy_snapshots
  if is_whole; then
    sync -f "$to" 2>/dev/null || sync
    exit 0
  fi
done
echo "backup_sessions.sh: $from changed all the time, or is no folder of sessions" >&2
exit 1
