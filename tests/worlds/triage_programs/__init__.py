"""The triage desk as programs that know nothing of promptiter."""
