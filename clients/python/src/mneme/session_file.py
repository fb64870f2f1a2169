"""Files of sessions: how they are written, and how they are sent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Optional, Union

from mneme.errors import DataLoss
from mneme.requests import Duration, milliseconds
from mneme.v1 import sessions_pb2

FilePath = Union[str, "os.PathLike[str]"]

FileContents = Union[FilePath, bytes]
"""A file's path, or what is in it."""

_PIECE_BYTES = 1 << 20


class NewFile:
    """A file that is there whole or not at all, for its owner alone to read."""

    def __init__(self, path: FilePath, overwrite: bool) -> None:
        self._path = Path(path)
        self._overwrite = overwrite
        if not overwrite and os.path.lexists(self._path):
            raise FileExistsError(f"{self._path} exists")
        descriptor, self._partial = tempfile.mkstemp(
            prefix=self._path.name + ".", dir=self._path.parent
        )
        self._file = os.fdopen(descriptor, "wb")

    def write(self, data: bytes) -> None:
        """Appends."""
        self._file.write(data)

    def finish(self) -> int:
        """Gives the file its name, once it is on the disk; returns its size."""
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        if self._overwrite:
            os.replace(self._partial, self._path)
        else:  # Unlike a rename, a link never replaces what has come meanwhile.
            os.link(self._partial, self._path)
        return size

    def close(self) -> None:
        """Removes what was not finished."""
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._partial)


class Incoming:
    """Checks that all of a file came."""

    def __init__(self) -> None:
        self._expected: Optional[int] = None
        self._bytes = 0

    def take(self, response: sessions_pb2.ExportSessionResponse) -> bytes:
        """The bytes of a message."""
        if self._expected is None:
            self._expected = response.file_bytes
        self._bytes += len(response.data)
        return response.data

    def finish(self) -> None:
        """Raises DataLoss if there should have been more."""
        if self._bytes != self._expected:
            raise DataLoss(
                f"the session's file ended after {self._bytes} bytes, expected {self._expected}"
            )


def import_requests(
    file: FileContents, name: str, ttl: Optional[Duration]
) -> Iterator[sessions_pb2.ImportSessionRequest]:
    """The messages of an import."""
    ttl_ms = milliseconds(ttl)
    if isinstance(file, bytes):
        return _of_bytes(file, name, ttl_ms)
    return _of_file(file, name, ttl_ms, os.path.getsize(file))


def _of_bytes(data: bytes, name: str, ttl_ms: int) -> Iterator[sessions_pb2.ImportSessionRequest]:
    yield sessions_pb2.ImportSessionRequest(name=name, ttl_ms=ttl_ms, file_bytes=len(data))
    for begin in range(0, len(data), _PIECE_BYTES):
        yield sessions_pb2.ImportSessionRequest(data=data[begin : begin + _PIECE_BYTES])


def _of_file(
    path: FilePath, name: str, ttl_ms: int, size: int
) -> Iterator[sessions_pb2.ImportSessionRequest]:
    yield sessions_pb2.ImportSessionRequest(name=name, ttl_ms=ttl_ms, file_bytes=size)
    with open(path, "rb") as file:
        while data := file.read(_PIECE_BYTES):
            yield sessions_pb2.ImportSessionRequest(data=data)
