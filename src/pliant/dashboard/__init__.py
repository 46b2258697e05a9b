"""The page that shows jobs and pools in a browser: its files, and who serves them to whom."""
