"""Data: read, label, split and tokenize rows."""

#: The toolkit's own column of raw rows: the row's number in its split of the source, from 0.
ROW = "_row"
