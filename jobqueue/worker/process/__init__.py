"""The process itself: signals, deadlines, stacks, its supervisor and its neighbours."""
