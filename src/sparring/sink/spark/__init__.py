"""The sink as a Spark Structured Streaming query."""
