"""How fast the hot loops are, against their peers in the same run: see ``run.py``."""
