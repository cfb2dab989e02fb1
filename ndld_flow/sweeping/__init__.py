"""Which points a sweep tries, and which of them are best. Numbers in, numbers out: no recipe, no store."""
