"""Bytes, access records and happens-before: whether an access is right."""
