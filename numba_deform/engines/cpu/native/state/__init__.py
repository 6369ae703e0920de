"""Threads, blocks, barriers and memory whose state machine code shares."""
