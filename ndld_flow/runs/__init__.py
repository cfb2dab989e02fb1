"""The runs of an outputs folder: find, name, list, draw, verify and remove them."""
