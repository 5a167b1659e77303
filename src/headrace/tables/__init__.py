"""SQL over streams: dialect, catalog, queries, and how they become the steps that Python programs use, too."""
