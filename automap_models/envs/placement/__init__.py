"""Placing the groups of a step's operations on devices."""
