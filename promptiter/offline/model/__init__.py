"""The simulated model: reads an instruction as rules, and answers a task in accordance with them."""
