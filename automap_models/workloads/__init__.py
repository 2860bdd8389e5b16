"""Training steps of well-known models."""
