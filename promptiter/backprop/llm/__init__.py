"""The stages that ask a model: prompts, calls, parsing of replies."""
