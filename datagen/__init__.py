"""Random C, A, W arrays as sharded data sets."""
