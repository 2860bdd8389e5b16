"""Pipeline plans: the policy, the exact search, baselines, and the choice among them."""
