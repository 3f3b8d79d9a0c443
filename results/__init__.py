"""Records of trials: their schema, their store on disk, and statistics over them."""
