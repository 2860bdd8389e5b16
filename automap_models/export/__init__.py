"""Plans in the words of other frameworks: one module a target, which writes a file and reads it back (targets.py)."""
