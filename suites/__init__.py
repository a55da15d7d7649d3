"""What is asked: the bundled suites. Each file holds one suite of the file's name."""
