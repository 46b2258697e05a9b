"""trl: its trainers with a session's loop, by one changed line.

from pliant.integrations.trl import SFTTrainer
"""

from __future__ import annotations

from pliant.integrations.transformers import Elastic
from pliant.integrations.versions import require

require("trl", least="1.16", below="2")

import trl  # noqa: E402 - see above


class SFTTrainer(Elastic, trl.SFTTrainer):
    """A ``trl.SFTTrainer`` that is elastic."""


class DPOTrainer(Elastic, trl.DPOTrainer):
    """A ``trl.DPOTrainer`` that is elastic."""
