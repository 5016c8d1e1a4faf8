"""Active sets, rounds, and the elimination of points when a round closes."""
