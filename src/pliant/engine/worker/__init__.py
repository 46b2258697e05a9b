"""The process around a script: bootstrap, fork server, what people are told."""
