"""What people already have, read: command lines and configurations of other frameworks, a module each (reader.py)."""
