"""A client of HTTP/2 that sends what it is told to, for what gRPC's own clients never do."""

import select
import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
ACK = END_STREAM = 1
END_HEADERS = 4
ENHANCE_YOUR_CALM = 11
MAX_FRAME = 16384


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header field in HPACK, spelt out."""
    return b"\x10" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def connect(port):
    """A connection that has said what HTTP/2 begins with."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
    return connection


def begin_call(connection, stream, path):
    """The header of a call of gRPC's."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    block = b"".join(literal(name, value) for name, value in fields.items())
    connection.sendall(frame(HEADERS, END_HEADERS, stream, block))


class UnfinishedCalls:
    """One connection with calls whose messages have begun and do not end."""

    def __init__(self, port):
        self._socket = connect(port)
        self._in = b""
        self._next_stream = 1
        self._initial_window = 65535
        self._window = 65535  # of the connection
        self._windows = {}
        self._left = {}  # by stream: bytes still to send
        self.sent = 0
        self.resets = {}  # by stream: the error code it was cut off with

    def close(self):
        self._socket.close()

    def begin(self, path, part, whole):
        """A call that will send the first `part` bytes of a message of `whole`."""
        stream = self._next_stream
        self._next_stream += 2
        begin_call(self._socket, stream, path)
        self._windows[stream] = self._initial_window
        self._left[stream] = memoryview(struct.pack(">BI", 0, whole) + bytes(part))

    def run(self, stop):
        """Sends as fast as the server's windows let it, until the event, or it hangs up."""
        while not stop.is_set():
            readable, _, _ = select.select([self._socket], [], [], 0.01)
            if readable:
                data = self._socket.recv(1 << 20)
                if not data:
                    return
                self._in += data
                self._take_frames()
            for stream in list(self._left):
                self._send(stream)

    def _send(self, stream):
        data = self._left[stream]
        size = min(len(data), self._window, self._windows[stream], MAX_FRAME)
        if size <= 0:
            return
        self._socket.sendall(frame(DATA, 0, stream, bytes(data[:size])))
        self._left[stream] = data[size:]
        self._window -= size
        self._windows[stream] -= size
        self.sent += size

    def _take_frames(self):
        while len(self._in) >= 9:
            size = int.from_bytes(self._in[:3], "big")
            if len(self._in) < 9 + size:
                return
            kind, flags, stream = struct.unpack(">BBI", self._in[3:9])
            payload, self._in = self._in[9 : 9 + size], self._in[9 + size :]
            self._take(kind, flags, stream, payload)

    def _take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:  # initial window of streams, for those there are, too
                    for known in self._windows:
                        self._windows[known] += value - self._initial_window
                    self._initial_window = value
            self._socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            increment = struct.unpack(">I", payload)[0]
            if stream == 0:
                self._window += increment
            elif stream in self._windows:
                self._windows[stream] += increment
        elif kind == RST_STREAM:
            self.resets.setdefault(stream, struct.unpack(">I", payload)[0])
            self._left.pop(stream, None)
