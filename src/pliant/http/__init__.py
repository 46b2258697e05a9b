"""Serving and asking over HTTP: once, for coordinator, pool and whatever serves next."""
