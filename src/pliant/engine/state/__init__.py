"""All that a joiner needs: what it is, its bytes, how it travels."""
