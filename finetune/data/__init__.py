"""Read, label, split and tokenize rows."""

#: The column of raw rows with the row's number in its split of the source, from 0.
ROW = "_row"
