"""Places that keep bytes: directories and object stores."""
