"""Statistics: exact tests, power, run-to-run noise. Plain functions of numbers."""
