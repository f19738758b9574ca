"""Sources of text, record by record."""
