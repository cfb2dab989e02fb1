"""`bisect`: the release in which the verdict of a recipe changed."""
