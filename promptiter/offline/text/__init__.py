"""What texts contain: dates, numbers, and named fields."""
