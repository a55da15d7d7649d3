"""What is looked at: charts drawn from what `frostline.results` keeps."""
