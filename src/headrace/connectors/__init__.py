"""Systems that rows are read from and written to; a folder each for both directions."""
