"""A way to the database that a test can cut or slow down; nobody is told."""

import asyncio
import contextlib
import random
from pathlib import Path


class Proxy:
    """Passes bytes on until `swallow` is set; then both sides hear nothing more."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.swallow = False
        self.delay = (0.0, 0.0)  # of what the database answers, in seconds, from and to
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = self.server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.host.startswith("/"):
                path = Path(self.host) / f".s.PGSQL.{self.port}"
                far_reader, far_writer = await asyncio.open_unix_connection(path)
            else:
                far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
            await asyncio.gather(
                self._pass(reader, far_writer), self._pass(far_reader, writer, back=True)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for end in (writer, locals().get("far_writer")):
                if end is not None:
                    with contextlib.suppress(OSError, RuntimeError):
                        end.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool = False
    ) -> None:
        while data := await reader.read(65536):
            if self.swallow:
                await asyncio.Event().wait()
            if back and self.delay[1]:
                await asyncio.sleep(random.uniform(*self.delay))
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()
