"""Figures as SVG, and what they share."""
