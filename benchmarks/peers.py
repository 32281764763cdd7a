"""This queue in a harness that measures other queues, all in one run, interleaved.

`python -m benchmarks.peers HARNESS [MEASURES [PEERS]]`, by default `m1,m2,m3,m4,m5` with
`raw,pgqueuer`. HARNESS is a folder with `setup.sh`, `run.py` and `peers/`; it is not changed: a
copy gets `peer_jobqueue.py` as one more peer. What it needs is put under BENCH_HOME.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

HOME = Path(os.environ.get("BENCH_HOME", Path(tempfile.gettempdir()) / "queue-bench"))
REPEATS = os.environ.get("REPEATS", "3")
# The columns that identify a row of results, and the figures to show.
SHOWN = {
    "m1": ("rate",),
    "m2": ("rate",),
    "m3": ("acked_rate", "rss"),
    "m4": ("p50", "p99"),
    "m5": ("qps", "worker_cpu_ms_s", "rss"),
    "m6": ("acked_rate", "rate"),
}
Key = tuple[str, str]


def main(harness: Path, measures: str, peers: str) -> None:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        copy = Path(name) / "harness"
        shutil.copytree(harness, copy)
        shutil.copy(Path(__file__).parent / "peer_jobqueue.py", copy / "peers" / "jobqueue.py")
        variables = {**os.environ, "BENCH_HOME": str(HOME)}
        subprocess.run(["bash", copy / "setup.sh", *peers.split(",")], env=variables, check=True)
        _lend_environment()
        results = Path(name) / "results.jsonl"
        command: list[Any] = [
            HOME / "venv" / "harness" / "bin" / "python",
            copy / "run.py",
            measures,
        ]
        options: list[Any] = ["--peers", f"jobqueue,{peers}", "--reps", REPEATS, "--out", results]
        subprocess.run([*command, *options], env=variables, check=True)
        rows = [json.loads(line) for line in results.read_text().splitlines()]
        if kept := os.environ.get("OUT"):
            shutil.copy(results, kept)
    for line in table(rows):
        print(line)


def _lend_environment() -> None:
    """The harness starts each peer with a Python of its own: ours is the one that runs this."""
    place = HOME / "venv" / "jobqueue"
    place.unlink(missing_ok=True)
    place.symlink_to(sys.prefix)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the medians of each case: ours, and each peer's with our ratio to it."""
    cases: dict[Key, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        if row["m"] == "error":
            yield f"error: {row}"
        if row["m"] in SHOWN:
            _add_percentiles(row)
            parts = [row[name] for name in ("profile", "conc", "case") if row.get(name)]
            key = (row["m"], " ".join(map(str, parts)))
            cases.setdefault(key, {}).setdefault(row["peer"], []).append(row)
    for (measure, case), found in sorted(cases.items()):
        for figure in SHOWN[measure]:
            values = {peer: _median(many, figure) for peer, many in found.items()}
            ours = values.pop("jobqueue", None)
            parts = [f"{peer} {value:,.2f}{_ratio(ours, value)}" for peer, value in values.items()]
            shown = "none" if ours is None else f"{ours:,.2f}"
            yield f"{measure} {case} {figure}: jobqueue {shown}; {', '.join(parts)}"


def _add_percentiles(row: dict[str, Any]) -> None:
    if times := row.get("ms"):
        row["p50"], row["p99"] = median(times), times[min(int(len(times) * 0.99), len(times) - 1)]


def _median(rows: list[dict[str, Any]], figure: str) -> float:
    return median([row.get(figure) or 0.0 for row in rows])


def _ratio(ours: float | None, theirs: float) -> str:
    return f" ({ours / theirs:.2f})" if ours and theirs else ""


if __name__ == "__main__":
    words = sys.argv[1:]
    if not words or not (Path(words[0]) / "run.py").exists():
        sys.exit("Give the harness's folder: python -m benchmarks.peers HARNESS [MEASURES [PEERS]]")
    defaults = ["m1,m2,m3,m4,m5", "raw,pgqueuer"]
    main(Path(words[0]), *(words[1:] + defaults[len(words) - 1 :]))
