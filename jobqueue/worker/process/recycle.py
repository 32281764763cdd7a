"""When a worker should be replaced by a fresh one: after so many jobs, or with so much memory."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycling:
    """The limits of one process; None: no limit."""

    max_jobs: int | None = None  # attempts that may begin: the claims' concern
    max_memory: int | None = None  # MiB of resident memory

    def due(self) -> str | None:
        """Return why this process should drain now, or None. Cheap enough for every beat."""
        if self.max_memory is not None:
            used = resident_bytes() / MEBIBYTE
            if used >= self.max_memory:
                return f"{used:.0f} MiB in use, --max-memory is {self.max_memory}"
        return None


def resident_bytes() -> int:
    """Return the process's resident memory; if that is unknown, its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
