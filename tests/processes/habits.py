"""Small scripts in each of which one habit is wrong, and where ``pliant check`` is to see it.

Owns the scripts; what plays them is ``test_check``.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

_SCRIPT = """
import math, os, random, shutil, torch, pliant
from multiprocessing import Value
from torch.nn import functional as F
{top}
pliant.seed(1)
x = torch.randn(256, 4)
class Rows(torch.utils.data.Dataset):
    def __len__(self): return len(x)
    def __getitem__(self, i): return x[i]
{data}
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
def loss_of(batch): return F.mse_loss(model(batch), batch.sum(1, keepdim=True))
{made}
with pliant.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
                    dataset={dataset}, global_batch_size=32, micro_batch_size=8,
                    num_workers={workers}) as session:
    for step in session.steps({steps}):
        for batch in step:
{inside}
{tail}
{behind}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """A script, as far as it differs from one in which nothing is wrong."""

    history: str
    """In which it shows: ``two``, ``join`` or ``kill``."""
    kinds: tuple[str, ...]
    """What may differ; ``random``: already alone."""
    named: str = ""
    """What the difference or its causes name."""
    top: str = ""
    data: str = ""
    dataset: str = "Rows()"
    made: str = ""
    inside: str = "step.backward(loss_of(batch))"
    tail: str = "pass"
    behind: str = ""
    steps: str = "20"
    workers: int = 0

    def script(self) -> str:
        """Return the whole of it."""
        return _SCRIPT.format(
            top=self.top,
            data=textwrap.dedent(self.data),
            dataset=self.dataset,
            made=self.made,
            inside=textwrap.indent(self.inside, " " * 12),
            tail=textwrap.indent(self.tail, " " * 8),
            behind=self.behind,
            steps=self.steps,
            workers=self.workers,
        )


def _rows(method: str, begin: str = "") -> str:
    return (
        f"class Own(Rows):\n    {begin or 'pass'}\n    def __getitem__(self, i):\n        {method}"
    )


TRAINED = ("loss", "samples", "refused")
HABITS = {
    "the next batch is drawn behind the forward": Habit(
        history="two",
        kinds=TRAINED,
        named="ready",
        made="draw = lambda: torch.randn(8, 4)\nready = draw()",
        inside="step.backward(loss_of(ready)); ready = draw()",
    ),
    "a baseline runs along with the losses": Habit(
        history="two",
        kinds=TRAINED,
        named="mean",
        made="mean = 1.0",
        inside="loss = loss_of(batch); step.backward(loss / mean)\n"
        "mean = 0.9 * mean + 0.1 * loss.item()",
    ),
    "noise comes from a generator of its own": Habit(
        history="two",
        kinds=TRAINED,
        named="own",
        made="own = torch.Generator().manual_seed(3)",
        inside="step.backward(loss_of(batch + torch.randn(batch.shape, generator=own)))",
    ),
    "an epoch is told in shared memory": Habit(
        history="two",
        kinds=TRAINED,
        data="epoch = Value('i', 0)\n" + _rows("return x[i] + epoch.value"),
        dataset="Own()",
        tail="epoch.value = step.index // 4",
        workers=1,
    ),
    "a tail changes an attribute of the model": Habit(
        history="join",
        kinds=TRAINED,
        named="heat",
        made="model.heat = 1.0",
        inside="step.backward(loss_of(batch) * model.heat)",
        tail="model.heat *= 0.9",
    ),
    "only the first process finds no file": Habit(
        history="two",
        kinds=TRAINED,
        top="scale = 2.0 if os.path.exists('seen') else 1.0\nopen('seen', 'w').close()",
        inside="step.backward(loss_of(batch) * scale)",
    ),
    "the best loss is a plain variable": Habit(
        history="kill",
        kinds=("file", "printed", "refused"),
        made="best, times = math.inf, 0",
        tail="if session.leader and step.loss < best:\n    best, times = step.loss, times + 1\n"
        "    open('best.txt', 'w').write(f'{best} {times}')",
    ),
    "a log is opened anew": Habit(
        history="join",
        kinds=("file", "refused"),
        named="log.csv",
        top="log = open('log.csv', 'w', buffering=1)",
        tail="if session.leader: log.write(f'{step.index},{step.loss}\\n')",
    ),
    "every replica writes": Habit(
        history="two",
        kinds=("file", "refused"),
        named="log.csv",
        tail="with open('log.csv', 'a') as log: log.write(f'{step.index},{step.loss}\\n')",
    ),
    "rows wait in a buffer": Habit(
        history="kill",
        kinds=("file", "refused"),
        named="log.csv",
        top="log = open('log.csv', 'a')",
        tail="if session.leader: log.write(f'{step.index},{step.loss}\\n')",
    ),
    "a directory is made that may be there": Habit(
        history="two", kinds=("refused",), named="out", top="os.makedirs('out')"
    ),
    "losses are added up on each replica": Habit(
        history="two",
        kinds=("printed", "refused"),
        named="total",
        made="total = 0.0",
        inside="loss = loss_of(batch); step.backward(loss); total += loss.item()",
        tail="if session.leader: print('total', total)",
    ),
    "what is logged is counted on each replica": Habit(
        history="two",
        kinds=("logged", "refused"),
        named="seen",
        made="seen = 0",
        inside="step.backward(loss_of(batch)); seen += len(batch)",
        tail="session.log(seen=seen)",
    ),
    "a snapshot of its own says how far it is": Habit(
        history="join",
        kinds=("call", "steps", "refused"),
        named="steps(",
        top="done = int(open('done').read()) if os.path.exists('done') else 0",
        steps="100 - done",
        tail="if session.leader: open('done', 'w').write(str(step.index + 1))",
    ),
    "it is random by itself": Habit(
        history="two",
        kinds=("random",),
        made="scale = random.SystemRandom().random()",
        inside="step.backward(loss_of(batch) * scale)",
    ),
    "an average of the weights in a closure, which the leader writes": Habit(
        history="join",
        kinds=("file",),
        named="average.pt has other content",
        made="def averaging():\n    kept = [p.detach().clone() for p in model.parameters()]\n"
        "    @torch.no_grad()\n"
        "    def update():\n        for a, p in zip(kept, model.parameters()): a.lerp_(p, 0.1)\n"
        "    return update, lambda: torch.save(kept, 'average.pt')\n"
        "update, save = averaging()",
        tail="update()",
        behind="if session.leader: save()",
    ),
}
