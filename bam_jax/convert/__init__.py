"""The authors' weights into runs, and runs into the authors' layout."""
