"""The processes of a trial: what is measured, and how."""
