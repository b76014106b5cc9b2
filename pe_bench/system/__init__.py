"""Files, cache, terminal, signals, processes, memory, machine and versions."""
