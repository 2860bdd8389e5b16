"""The strategy with which a model trains fastest on a cluster, with a proof of how much is left to gain."""
