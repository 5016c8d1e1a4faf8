"""Active sets, rounds, and what the end of a round leaves."""
