"""Frozen records of what is given and what is decided; numpy only."""
