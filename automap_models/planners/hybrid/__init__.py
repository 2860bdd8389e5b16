"""Pipelines whose stages partition operators: in which ways a stage may, and the search among them."""
