"""Figures of the report: matplotlib and seaborn, as inline SVG."""
