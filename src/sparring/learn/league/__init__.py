"""What learns in a league: its learners as services, and how a league is started on a host."""
