"""Drawings of graphs: SVG, Mermaid, and lanes of text."""
