"""promptiter."""
