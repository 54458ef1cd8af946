"""The simulated model: reads an instruction as rules and answers a task by them."""
