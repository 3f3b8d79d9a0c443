"""Several studies: a site with an index, a page each, comparisons and history."""
