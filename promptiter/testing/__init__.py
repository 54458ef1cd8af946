"""Contract suites: tests that an implementation of a replaceable part of promptiter must pass."""
