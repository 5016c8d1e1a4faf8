"""Where points may be asked: finite sets and boxes."""
