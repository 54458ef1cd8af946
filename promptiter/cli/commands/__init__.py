"""The commands of `promptiter`, one module each: parse, call the API, hand the result to a view."""
