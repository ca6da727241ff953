"""Child processes: started with a log, restarted by a policy, stopped by a deadline, and ended with their parent."""
