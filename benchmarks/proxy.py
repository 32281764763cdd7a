"""A proxy in front of the database that counts statements and can add latency."""

import contextlib
import socket
import threading
import time
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

CHUNK = 65536


class Proxy:
    """Listens on the loopback and forwards each session. `statements` counts what was executed."""

    def __init__(self, url: str, delay: float = 0.0) -> None:
        self.target, self.delay = url, delay / 2  # of the round trip, each way
        self.statements = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(
            parts._replace(
                netloc=f"{user or 'postgres'}@127.0.0.1:{port}",
                query="sslmode=disable&gssencmode=disable",
            )
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._connect()
                for end in (client, server):
                    if end.family != socket.AF_UNIX:
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, sink, counts in ((client, server, True), (server, client, False)):
                    pump = Pump(self, source, sink, counts)
                    threading.Thread(target=pump.read, daemon=True).start()
                    threading.Thread(target=pump.write, daemon=True).start()

    def _connect(self) -> socket.socket:
        parts = urlsplit(self.target)
        host = parse_qs(parts.query).get("host", [unquote(parts.hostname or "")])[0] or "127.0.0.1"
        if not host.startswith("/"):
            return socket.create_connection((host, parts.port or 5432))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{parts.port or 5432}")
        return server


class Pump:
    """One direction of one session; what arrives is sent on after the delay, in order."""

    def __init__(
        self, proxy: Proxy, source: socket.socket, sink: socket.socket, counts: bool
    ) -> None:
        self.proxy, self.source, self.sink, self.counts = proxy, source, sink, counts
        self._waiting: list[tuple[float, bytes]] = []
        self._filled = threading.Condition()
        self._unread, self._started = b"", False

    def read(self) -> None:
        data = b" "
        while data:
            try:
                data = self.source.recv(CHUNK)
            except OSError:
                data = b""
            if self.counts:
                self._count(data)
            with self._filled:
                self._waiting.append((time.monotonic() + self.proxy.delay, data))
                self._filled.notify()

    def write(self) -> None:
        data = b" "
        while data:
            with self._filled:
                self._filled.wait_for(lambda: self._waiting)
                moment, data = self._waiting.pop(0)
            time.sleep(max(moment - time.monotonic(), 0))
            with contextlib.suppress(OSError):
                self.sink.sendall(data) if data else self.sink.shutdown(socket.SHUT_RDWR)

    def _count(self, data: bytes) -> None:
        """Follow the protocol's messages: a byte of type (none at the start), length, content."""
        self._unread += data
        while len(self._unread) >= 5:
            head = 1 if self._started else 0
            size = head + int.from_bytes(self._unread[head : head + 4], "big")
            if len(self._unread) < size:
                return
            if self._started and self._unread[:1] in (b"E", b"Q"):  # Execute, simple Query
                self.proxy.statements += 1
            self._unread, self._started = self._unread[size:], True
