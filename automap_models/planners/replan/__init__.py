"""Plans made again for a running job, from what was measured of it."""
