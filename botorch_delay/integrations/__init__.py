"""Other people's engines: each module needs the extra of the same name, and is imported by name."""
