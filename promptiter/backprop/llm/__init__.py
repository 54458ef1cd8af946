"""The stages that call a model: prompts, calls, parsing of replies."""
