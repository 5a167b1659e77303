"""Windows row by row: any kind of window with any trigger, evictor and function."""
