"""Networks of pipelines and of placements."""
