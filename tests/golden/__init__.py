"""Files that tests compare with or read: a store of the present formats, fields of documents, tables, exports."""
