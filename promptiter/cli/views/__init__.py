"""How commands show what they found: plain data in, text for people or JSON for machines out."""
