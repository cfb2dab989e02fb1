"""The values inside a model for given inputs, written as a document for the report."""
