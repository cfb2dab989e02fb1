"""Steps computed by the nodes of a Ray cluster."""
