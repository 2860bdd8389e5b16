"""PyTorch models → instruction graph and profile, through torch.export on the meta device."""
