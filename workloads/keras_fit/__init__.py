"""``fit`` of Keras: any compiled model, measured as its users train it."""
