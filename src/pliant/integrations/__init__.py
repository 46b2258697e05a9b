"""Integrations: trainers of other people whose loop is a session's, so that replicas come and go.

Each module is one framework's, and the only one that imports it; nothing else of pliant imports
this room.  A framework keeps what it does (logging, evaluation, saving, callbacks); what of it is
a function of one replica alone is added up, kept with the run, or refused by its name.  Scripts
with a loop of their own, written for HyperPod, import what they ask after each step.
"""
