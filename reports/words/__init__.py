"""What is said of a study: verdict, findings, caveats, and how numbers are written."""
