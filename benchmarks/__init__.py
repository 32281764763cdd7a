"""How fast this queue is, beside the bare driver on the same machine: see docs/benchmarks.md."""
