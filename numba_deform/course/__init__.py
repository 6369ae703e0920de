"""What the lessons import, and the planted faults."""
