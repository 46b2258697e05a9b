"""One of two processes that share a sequence, as torch's context parallelism has it; CPU and gloo.

python tests/engine/sharding/context.py DIRECTORY RANK

Says how the gradient of attention over half of the tokens compares with that over all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.functional import scaled_dot_product_attention


def main() -> None:
    directory, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    store = FileStore(str(directory / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    torch.manual_seed(3)
    weight = torch.randn(8, 8, requires_grad=True)
    tokens = torch.randn(1, 2, 16, 8)
    attend(tokens, weight)
    expected, weight.grad = weight.grad, None
    try:
        with context_parallel(mesh, buffers=[tokens], buffer_seq_dims=[2]):
            attend(tokens, weight)
        assert weight.grad is not None
        assert expected is not None
        dist.all_reduce(weight.grad)
        is_same = torch.allclose(weight.grad / 2, expected, rtol=1e-4, atol=1e-6)
        sys.stdout.write(f"{'works' if is_same else 'failed: another gradient'}\n")
    except Exception as error:  # whatever torch says is the answer
        sys.stdout.write(f"failed: {type(error).__name__}: {str(error).splitlines()[0]}\n")


def attend(tokens: torch.Tensor, weight: torch.Tensor) -> None:
    """Let each token see itself and what came before; leave the gradient of the mean."""
    queries = tokens @ weight
    mixed = scaled_dot_product_attention(queries, tokens, tokens, is_causal=True)
    torch.autograd.backward(mixed.square().mean())


if __name__ == "__main__":
    main()
