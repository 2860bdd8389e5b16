"""Placements of operator graphs on devices."""
