"""Workers: processes elsewhere that run jobs, and what they need from the host."""
