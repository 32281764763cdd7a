"""A way to the database that a test can cut or slow down; neither side notices."""

import asyncio
import contextlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PURPOSE = re.compile(rb"application_name\0jobqueue ([a-z0-9 ]+)\0")


@dataclass(eq=False)
class Link:
    """One connection through the proxy."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    purpose: str = ""  # what the worker calls it: claim, claim 2, finish, beat, listen

    def close(self) -> None:
        for end in (self.near, self.far):
            with contextlib.suppress(OSError, RuntimeError):
                end.close()


class Proxy:
    """Passes bytes on until `swallow` is set; then both sides hear nothing more.

    `swallow_answers` lets the questions through. `only` limits both, and what cuts, to the
    connections of one purpose.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.swallow = False
        self.swallow_answers = False
        self.only = ""
        self.swallowed = asyncio.Event()
        self.refuse = False
        self.delay = (0.0, 0.0)  # of what the database answers, in seconds, from and to
        self._links: set[Link] = set()
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

    def concerned(self) -> Iterator[Link]:
        return (link for link in list(self._links) if self.only in ("", link.purpose))

    def purposes(self) -> list[str]:
        return sorted(link.purpose for link in self._links)

    def cut(self) -> None:
        """Reset the connections."""
        for link in self.concerned():
            link.near.transport.abort()
            link.far.transport.abort()

    def half_close(self) -> None:
        """The database's side says that it will send nothing more; ours can go on talking."""
        for link in self.concerned():
            with contextlib.suppress(OSError, RuntimeError):
                link.near.write_eof()

    def heal(self) -> None:
        """From here on everything passes; what was swallowed before stays so until it is cut."""
        self.swallow = self.swallow_answers = self.refuse = False
        self.swallowed.clear()
        self.only, self.delay = "", (0.0, 0.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = None
        try:
            if self.refuse:
                return
            if self.host.startswith("/"):
                path = Path(self.host) / f".s.PGSQL.{self.port}"
                far_reader, far_writer = await asyncio.open_unix_connection(path)
            else:
                far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
            link = Link(writer, far_writer)
            self._links.add(link)
            await asyncio.gather(
                self._pass(link, reader, far_writer),
                self._pass(link, far_reader, writer, back=True),
            )
        except (OSError, RuntimeError, asyncio.CancelledError):
            pass  # RuntimeError: written after `half_close`
        finally:
            self._tasks.discard(task)
            if link is not None:
                self._links.discard(link)
                link.close()
            writer.close()

    async def _pass(
        self,
        link: Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        back: bool = False,
    ) -> None:
        while data := await reader.read(65536):
            if found := not link.purpose and PURPOSE.search(data):
                link.purpose = found[1].decode()
            concerned = self.only in ("", link.purpose)
            if concerned and (self.swallow or (back and self.swallow_answers)):
                self.swallowed.set()
                await asyncio.Event().wait()
            if back and self.delay[1]:
                await asyncio.sleep(random.uniform(*self.delay))
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()
