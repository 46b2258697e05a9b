"""A torchvision network that tells stripes apart; TensorBoard shows loss and accuracy.

pliant run examples/torchvision_resnet.py 40            # needs: pip install torchvision tensorboard
"""

import sys

import torch
from torch.utils.data import TensorDataset
from torch.utils.tensorboard import SummaryWriter
from torchvision.models import resnet18
from torchvision.transforms.v2 import RandomCrop

import pliant

pliant.seed(1)
at, labels = torch.arange(32), torch.arange(512) % 4
angles = (labels * torch.pi / 4).view(-1, 1, 1)
waves = torch.sin(at.view(-1, 1) * angles.cos() + at * angles.sin())
images = waves.unsqueeze(1) + 0.5 * torch.randn(512, 3, 32, 32)
model, crop = resnet18(num_classes=4), RandomCrop(32, padding=4)
writer = SummaryWriter("runs/tensorboard")  # whoever leads writes

with pliant.Session(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4),
    dataset=TensorDataset(images[64:], labels[64:]),
    global_batch_size=32,
    micro_batch_size=8,
) as session:
    for step in session.steps(int(sys.argv[1]) if sys.argv[1:] else 40):
        for x, y in step:
            step.backward(torch.nn.functional.cross_entropy(model(crop(x)), y))
        held_out = TensorDataset(images[:64], labels[:64])
        right = session.evaluate(held_out, lambda b: (model(b[0]).argmax(1) == b[1]).float().mean())
        if session.leader:
            writer.add_scalar("loss", step.loss, step.index)
            writer.add_scalar("accuracy", right, step.index)
            writer.flush()
