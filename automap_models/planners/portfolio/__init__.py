"""The explorer: every kind of plan for a model on a cluster, priced by one model and ranked (Auto-MAP, Figure 5)."""
