"""Reports: one offline HTML file, and a terminal table, from a study's store."""
