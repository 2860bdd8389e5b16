"""What people already have, read back: command lines and configurations of other frameworks, a module each (reader.py)."""
