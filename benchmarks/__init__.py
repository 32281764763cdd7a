"""How this queue compares with the bare driver on the same machine: see docs/benchmarks.md."""
