"""What is played: specs, the built-in games, adapters for other libraries, and the checks that a spec allows."""
