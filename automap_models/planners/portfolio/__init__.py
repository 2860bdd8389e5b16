"""Portfolios: planners that choose among stages, micro-batches and kinds of plans (Auto-MAP, Figure 5)."""
