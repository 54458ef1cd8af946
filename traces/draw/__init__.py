"""Pictures of graphs in layers: as SVG, as Mermaid, and as lanes of text."""
