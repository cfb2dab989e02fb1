"""`reduce`: the smallest model with which a recipe still fails in the same way."""
