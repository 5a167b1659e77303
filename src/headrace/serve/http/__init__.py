"""State over HTTP: keys, pages, whole states, and changes as they are published."""
