"""What is measured and how: bench, sweep, tune, ceilings, peers, counters, timeline, records, reports."""
