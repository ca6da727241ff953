"""Models in an S3 bucket."""
