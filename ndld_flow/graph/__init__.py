"""Models as graphs: edited, sanitized, compared, linted, inspected."""
