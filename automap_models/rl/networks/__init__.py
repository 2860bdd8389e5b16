"""Q-networks, one file for each kind of environment."""
