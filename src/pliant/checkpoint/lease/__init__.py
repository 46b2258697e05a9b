"""The lease of a checkpoint root: it belongs to one job at a time.

rules        who may take it: pure
lease_file   the file that says who holds it: read, put in place in one act
holder       acquire, and one process's hold: beat, still_held, release
job_lease    the hold of a job whose processes come and go
"""
