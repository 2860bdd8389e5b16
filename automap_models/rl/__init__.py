"""Rainbow, once: offline and online training both use it."""
