"""Who can connect to the port that TensorFlow opens; see README.md here."""
