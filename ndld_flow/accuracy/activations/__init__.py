"""The values inside a model on given inputs, written as a document for the report."""
