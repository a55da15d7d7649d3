"""The files of the throw-away repository that every tool measures. They are copied, and run there under their own names."""
