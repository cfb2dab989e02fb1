"""From YAML files and overrides to a checked recipe."""
