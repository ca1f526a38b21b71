"""Reports: statements as plain values, tables, CSV and HTML. All formats show the same values."""
