"""The GPU engine: finding the device, launching, bounded launches that never hang."""
