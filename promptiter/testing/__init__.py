"""Test suites for people who implement a part of promptiter, such as a store."""
