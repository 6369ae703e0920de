"""Pipelines that have nothing to do with attention, each in one short file: what to start from."""
