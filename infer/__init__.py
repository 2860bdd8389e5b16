"""From a profile to a plan, for people."""
