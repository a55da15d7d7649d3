"""How one quantity is read: clock, memory, counts, telemetry."""
