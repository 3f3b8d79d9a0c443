"""What is said of a study: verdict, findings, trust, and how numbers are written."""
