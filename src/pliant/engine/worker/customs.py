"""Customs: the ways to train that scripts are accustomed to, and how each becomes pliant's.

Owns the table of them, by which a sentence names what to change and where to read on.  Must not
know how a script is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE = "pliant docs bring-your-script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom:
    """A way to train that scripts are accustomed to, and how one of it becomes pliant's."""

    change: str
    section: str
    """Of the page."""

    packages: tuple[str, ...] = ()
    """Whose code steps the optimizer in such a script."""

    def sentence(self, finding: str) -> str:
        """Say what such a script does, and what to change."""
        return f"{finding}. {self.change}; {self.pointer}"

    @property
    def pointer(self) -> str:
        """Say where to read on."""
        return f"`{self.section}` in {PAGE} shows the lines"


TORCHRUN = Custom(
    change="Delete init_process_group, DistributedDataParallel and DistributedSampler, and give "
    "the plain model, optimizer and dataset to pliant.Session, or start the script as it is with "
    "--mode restart, in which each change of size starts it again from its own checkpoint",
    section="From torchrun",
)
HUGGING_FACE = Custom(
    change="Import ElasticTrainer from pliant.integrations.transformers in its place (or of trl "
    "from pliant.integrations.trl), or give its model, a torch optimizer and its dataset to "
    "pliant.Session, and write the loop in place of trainer.train()",
    section="From a Trainer of Hugging Face",
    packages=("transformers", "trl"),
)
LIGHTNING = Custom(
    change="Give its Trainer strategy=ElasticStrategy() of pliant.integrations.lightning, or give "
    "the module, what its configure_optimizers makes and its dataset to pliant.Session, and call "
    "training_step in the loop in place of trainer.fit()",
    section="From Lightning",
    packages=("lightning", "pytorch_lightning", "lightning_fabric"),
)
ACCELERATE = Custom(
    change="Import ElasticAccelerator from pliant.integrations.accelerate in its place, or delete "
    "Accelerator and accelerator.prepare, give model, optimizer and dataset to pliant.Session, and "
    "call step.backward(loss) for accelerator.backward(loss)",
    section="From Accelerate",
    packages=("accelerate",),
)
DEEPSPEED = Custom(
    change="Delete deepspeed.initialize, whose sharding pliant has not, and give the plain model, "
    "a torch optimizer and the dataset to pliant.Session",
    section="From a plain loop",
    packages=("deepspeed",),
)
OTHER_TRAINER = Custom(
    change="Give model, optimizer and dataset to pliant.Session, and write the loop",
    section="From a plain loop",
    packages=("composer", "fastai", "ignite"),
)
PLAIN = Custom(
    change="Give model, optimizer and dataset to pliant.Session, and call step.backward(loss) for "
    "loss.backward(), optimizer.step() and zero_grad()",
    section="From a plain loop",
)
CUSTOMS = (HUGGING_FACE, LIGHTNING, ACCELERATE, DEEPSPEED, OTHER_TRAINER)

TRAINERS: dict[str, tuple[str, str, Custom]] = {
    "transformers.trainer": ("Trainer", "a transformers.Trainer", HUGGING_FACE),
    "lightning.pytorch.trainer.trainer": ("Trainer", "a Lightning Trainer", LIGHTNING),
    "pytorch_lightning.trainer.trainer": ("Trainer", "a Lightning Trainer", LIGHTNING),
    "lightning.fabric.fabric": ("Fabric", "a Lightning Fabric", LIGHTNING),
    "lightning_fabric.fabric": ("Fabric", "a Lightning Fabric", LIGHTNING),
    "accelerate.accelerator": ("Accelerator", "an Accelerator", ACCELERATE),
    "deepspeed": ("initialize", "a DeepSpeed engine", DEEPSPEED),
    "composer.trainer.trainer": ("Trainer", "a Composer Trainer", OTHER_TRAINER),
    "fastai.learner": ("Learner", "a fastai Learner", OTHER_TRAINER),
}
"""By module: what in it makes a trainer, how that is called in a sentence, and the way to go."""
