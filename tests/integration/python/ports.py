"""Ports whose numbers a test must know beforehand."""

import contextlib
import socket


@contextlib.contextmanager
def held_port():
    """A port that nobody listens on or is given, but that a server may have by its number."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
