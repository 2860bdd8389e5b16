"""Discrete-event simulation of a pipeline under a named schedule."""
