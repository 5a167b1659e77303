"""Running past epochs again: for one key, to see row by row how its state came about, or for the rows of an output."""
