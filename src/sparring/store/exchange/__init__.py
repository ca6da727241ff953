"""Chunks to and from other tools' files: Parquet, Minari."""
