"""The search for the nodes that a reduced precision breaks."""
