"""How spans say which steps an agent took: one module per dialect of span attributes; `registry` picks among them."""
