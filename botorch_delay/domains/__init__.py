"""Search domains: finite sets and boxes of points that may be asked."""
