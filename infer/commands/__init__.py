"""The commands: each its arguments, its request, what it runs and what it reports."""
