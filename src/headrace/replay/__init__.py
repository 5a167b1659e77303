"""Running some epochs again for one key, to see row by row how its state came about. Nothing in the store changes."""
