"""Damaged files and random arguments for every reader and every command; see tests/fuzz.py."""
