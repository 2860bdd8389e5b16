"""Sharding: a decision is how one linkage group of variables is stored."""
