"""State out of stores into files, out of files into new stores, and from store to store under other keys."""
