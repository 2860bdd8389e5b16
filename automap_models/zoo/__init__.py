"""Shipped policies, each with its card."""
