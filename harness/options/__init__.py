"""Options that are declared once, as fields of frozen models."""
