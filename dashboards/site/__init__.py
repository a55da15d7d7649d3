"""The static site: what a database holds as pages that open from a file, with nothing fetched from elsewhere."""
