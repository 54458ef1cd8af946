"""Work that starts from files: learning from the traces of production."""
