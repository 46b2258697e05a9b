"""One per box: several jobs and people share its devices; drives core.allocation."""
