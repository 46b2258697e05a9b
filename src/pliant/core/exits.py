"""Exit codes: what the commands tell the shell, and a worker its agent.

Owns the numbers and nothing else; docs/howto/run-a-job.md says them to users.
"""

from __future__ import annotations

EXIT_OK = 0
"""Finished."""
EXIT_FAILED = 1
"""The script failed, a checkpoint is damaged, devices did not come in time."""
EXIT_USAGE = 2
"""The user's input: not worth a restart.  Also what argparse and typer exit with."""
EXIT_STOPPED = 3
"""Stopped on request, or taken back."""
EXIT_STATE_LOST = 4
"""Nobody who is left holds the state of the run, and no checkpoint does."""
EXIT_TAKEN_OVER = 5
"""Another coordinator has the job now."""
EXIT_AGENT_GONE = 70
"""A worker whose agent is gone; nobody reads it but a person with strace."""
EXIT_NOT_STARTED = 127
"""The command of a claim could not be started; what shells say."""
EXIT_INTERRUPTED = 130
"""Ctrl-C twice; 128 and the number of SIGINT."""
