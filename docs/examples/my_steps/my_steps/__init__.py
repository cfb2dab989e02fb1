"""Steps and operations for ndld-flow."""
