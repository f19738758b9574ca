"""Where the text of the papers' corpora comes from."""
