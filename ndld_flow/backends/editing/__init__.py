"""Work on the graph of one model that stays in memory through a whole list of operations."""
