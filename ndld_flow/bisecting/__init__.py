"""Finding a small set of nodes whose keeping makes a model pass, by asking whether sets of them do."""
