"""Pure functions over the event log: status, goodput, timeline, audit."""
