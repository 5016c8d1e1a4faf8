"""Maximum-variance designs, and ascent on boxes."""
