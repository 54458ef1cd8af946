"""Statistics of two profiles on the same cases: exact tests, the claim at the end of a run, power, shares of a gain."""
