"""Files in folders: the source, the sink, rolling and the archive of closed windows."""
