"""Every public function, and every kind of thing that a user may pass to it."""
