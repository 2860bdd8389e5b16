"""Pipeline plans by a DQN trained on the one model (Auto-MAP §3.4)."""
