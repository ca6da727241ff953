"""Kinesis as a stream of chunks."""
