"""A disk of a few megabytes, for servers that are to run out of it."""

import os
import subprocess
from pathlib import Path
from typing import Optional


class SmallDisk:
    """A tmpfs in a mount namespace of its own, which takes no rights but those to make one.

    `program` starts another one inside of it, with the same process id; `path` is the folder there,
    and `seen` the same folder from here.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        mount = f"mount -t tmpfs -o size={megabytes}m tmpfs {self.path} && echo there && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.why_not: Optional[str] = None
        if self._holder.stdout.readline() != "there\n":
            self.why_not = f"no tmpfs can be mounted here: {self._holder.stderr.read().strip()}"
        self.seen = Path(f"/proc/{self._holder.pid}/root{self.path}")
        self._folder = folder

    def program(self, binary: Path) -> Path:
        """A script that runs the binary on this disk."""
        script = self._folder / "on_small_disk.sh"
        enter = f"nsenter --preserve-credentials -U -m -t {self._holder.pid}"
        script.write_text(f'#!/bin/sh\nexec {enter} {binary} "$@"\n')
        script.chmod(0o755)
        return script

    def fill(self, leave: int = 0) -> None:
        """Until so many bytes are free."""
        with (self.seen / "filler").open("ab", buffering=0) as filler:
            page = b"x" * 4096
            try:
                while self._free() > leave:
                    filler.write(page)
            except OSError:  # full
                pass

    def _free(self) -> int:
        disk = os.statvfs(self.seen)
        return disk.f_bavail * disk.f_frsize

    def make_room(self) -> None:
        (self.seen / "filler").unlink()

    def close(self) -> None:
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()
        self._holder.stderr.close()
