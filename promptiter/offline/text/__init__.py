"""What stands in texts: dates, numbers, and the fields that an input names."""
