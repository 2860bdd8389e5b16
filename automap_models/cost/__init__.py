"""What a plan costs: arithmetic on records, float64, no state."""
